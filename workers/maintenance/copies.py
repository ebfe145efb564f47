"""A report of servers that copy the tools of others. It changes nothing; the order of hits has its own rule.

The operator's own servers are not reported. The texts are searched by their words, without a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from shared.catalog import Candidates, IndexedTool, Scope, ServerRecord
from shared.index.contract import ToolIndex
from shared.text.copies import is_copy
from shared.text.terms import words
from shared.text.vectors import keyword_vectors

# The first tools of a server, by their ids. Ids are hashes, so the tools are a fair sample.
SAMPLE = 32
QUERY_CHARACTERS = 500
CANDIDATES = 3
# A server with more copies is reported: in percent of the sample, and at least so many.
REPORTED_PERCENT, REPORTED_LEAST = 10, 3
NAMED_IN_LOG = 10

_log = structlog.get_logger()


class CopyReports:
    """Reports each server with copies once after a change of its record."""

    def __init__(self) -> None:
        self._checked: dict[str, int] = {}

    def check(self, server_id: str, index: ToolIndex) -> None:
        """Log a warning if more than a tenth of the server's tools are copies of other servers' tools.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        record = index.server(server_id)
        if record is None or record.is_vetted or record.revision == self._checked.get(server_id):
            return
        tools = index.tools(Scope(servers=frozenset({server_id})), limit=SAMPLE).tools
        originals = _originals(tools, record, index) if tools else {}
        if len(originals) >= REPORTED_LEAST and 100 * len(originals) > REPORTED_PERCENT * len(tools):
            named = sorted(f"{name} of {original}" for name, original in originals.items())[:NAMED_IN_LOG]
            _log.warning("tools_copied", server=server_id, copied=len(originals), compared=len(tools), tools=named)
        self._checked[server_id] = record.revision


def _originals(tools: Sequence[IndexedTool], record: ServerRecord, index: ToolIndex) -> dict[str, str]:
    """Return the qualified name of another server's tool with the same text, by the tool's name."""
    elsewhere = Scope(hidden=frozenset({record.server_id}))
    found = index.search([keyword_vectors(_text(tool)) for tool in tools], elsewhere, CANDIDATES)
    others = index.get(sorted({point for candidates in found for point in candidates.terms}))
    return {
        tool.definition.name: original
        for tool, candidates in zip(tools, found, strict=True)
        if (original := _original(tool, candidates, others))
    }


def _original(tool: IndexedTool, candidates: Candidates, others: dict[str, IndexedTool]) -> str | None:
    for point in candidates.terms:
        other = others.get(point)
        if other and other.digest != tool.digest and is_copy(tool.definition, other.definition):
            return other.qualified_name
    return None


def _text(tool: IndexedTool) -> str:
    return f"{words(tool.definition.name)} {tool.definition.description}"[:QUERY_CHARACTERS]
