"""The tools of a toolset that `tools/list` offers directly, and their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from mcp.types import Tool
from pydantic import ValidationError

from query.savings.savings import Baseline
from query.toolsets.budget import BudgetResult, apply_budget

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from shared.catalog import Encoding, IndexedTool

# A larger toolset is searched with find_tool and used with call_tool.
MAX_DIRECT = 256
# The groups, toolset and budgets of callers, which many callers share.
_CACHED = 256

NOTHING = Baseline(0, 0)

OfferedCost = Callable[["Caller", "Encoding"], Baseline]
"""Returns the cost of the tools that a caller has in its `tools/list`."""


def nothing_offered(_caller: Caller, _encoding: Encoding) -> Baseline:
    """Return the cost of no tools."""
    return NOTHING


def offered_tools(caller: Caller, catalogue: Catalogue) -> BudgetResult:
    """Return the tools of the caller's toolset that its `tools/list` shows, within its budget.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    page = catalogue.pinned().index.tools(caller.scope, limit=MAX_DIRECT)
    usable = [tool for tool in page.tools if direct_definition(tool.definition.name, tool)]
    ordered = sorted(usable, key=lambda tool: tool.qualified_name)
    return apply_budget(ordered, caller, catalogue.encoding)


def has_offered_tools(caller: Caller) -> bool:
    """Return whether `tools/list` shows this caller the tools of a toolset."""
    return caller.selection is not None and "tools:call" in caller.permissions


class CachedOfferedCost:
    """The cost of the tools that a caller has in its `tools/list`, read again when a server of its scope changes."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._read = lru_cache(_CACHED)(self._read_cost)

    def __call__(self, caller: Caller, encoding: Encoding) -> Baseline:
        """Return the cost as of the ledger's last baseline.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        if not has_offered_tools(caller):
            return NOTHING
        revisions = self._catalogue.ledger.revisions(caller.scope)
        return self._read(replace(caller, name=""), encoding, revisions)

    def _read_cost(self, caller: Caller, encoding: Encoding, _revisions: tuple[int, ...]) -> Baseline:
        tools = offered_tools(caller, self._catalogue).kept
        return Baseline(
            tokens=sum(tool.token_counts.get(encoding, 0) for tool in tools),
            tools=len(tools),
            model_tokens=sum(tool.model_counts.get(encoding, 0) for tool in tools),
        )


def direct_definition(name: str, tool: IndexedTool) -> Tool | None:
    """Return the tool's definition under this name; None where the SDK rejects the definition.

    It has no output schema: a page of a long result is a part of its text.
    """
    try:
        declared = Tool.model_validate(tool.definition.as_object())
    except ValidationError:
        return None
    return declared.model_copy(update={"name": name, "output_schema": None})
