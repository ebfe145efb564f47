"""A report of servers that copy the tools of others. It changes nothing; the order of hits has its own rule.

Servers with an owner are not reported. The texts are searched by their words, without a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from shared.catalog import IndexedTool, Scope, ServerRecord
from shared.index.tools import ToolIndex
from shared.text.copies import is_copy
from shared.text.terms import words
from shared.text.vectors import keyword_vectors

# The first tools of a server, by their ids. Ids are hashes, so the tools are a fair sample.
SAMPLE = 32
QUERY_CHARACTERS = 500
CANDIDATES = 3
# One round trip to the index; the embedded engine stops the whole process during a search.
TOOLS_AT_A_TIME = 4
# A server with more copies is reported: in percent of the sample, and at least so many.
REPORTED_PERCENT, REPORTED_LEAST = 10, 3
NAMED_IN_LOG = 10

_log = structlog.get_logger()


class CopyReports:
    """Reports each server with copies once after a change of its record."""

    def __init__(self) -> None:
        self._checked: dict[str, int] = {}

    def check(self, server_id: str, index: ToolIndex) -> None:
        """Log a warning if more than a tenth of the server's tools are copies of tools of servers with an owner.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        record = index.server(server_id)
        if record is None or record.has_owner or record.revision == self._checked.get(server_id):
            return
        tools = index.tools(Scope(servers=frozenset({server_id})), limit=SAMPLE).tools
        originals = _originals(tools, record, index) if tools else {}
        if len(originals) >= REPORTED_LEAST and 100 * len(originals) > REPORTED_PERCENT * len(tools):
            named = sorted(f"{name} of {original}" for name, original in originals.items())[:NAMED_IN_LOG]
            _log.warning("tools_copied", server=server_id, copied=len(originals), compared=len(tools), tools=named)
        self._checked[server_id] = record.revision


def _originals(tools: Sequence[IndexedTool], record: ServerRecord, index: ToolIndex) -> dict[str, str]:
    """Return the qualified name of a tool with the same text, on a server with an owner, by the tool's name."""
    elsewhere = Scope(hidden=frozenset({record.server_id}))
    originals: dict[str, str] = {}
    for start in range(0, len(tools), TOOLS_AT_A_TIME):
        part = tools[start : start + TOOLS_AT_A_TIME]
        found = index.search([keyword_vectors(_text(tool)) for tool in part], elsewhere, CANDIDATES)
        others = index.get(sorted({point for candidates in found for point in candidates.terms}))
        for tool in part:
            copied = (other for other in others.values() if is_copy(tool.definition, other.definition))
            if original := next((each for each in copied if _has_owner(each.server_id, index)), None):
                originals[tool.definition.name] = original.qualified_name
    return originals


def _has_owner(server_id: str, index: ToolIndex) -> bool:
    record = index.server(server_id)
    return record is not None and record.has_owner


def _text(tool: IndexedTool) -> str:
    return f"{words(tool.definition.name)} {tool.definition.description}"[:QUERY_CHARACTERS]
