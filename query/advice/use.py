"""The use of each tool in the history, as far as a caller may see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from query.history.store import OTHERS, Sums
from query.reports.access import is_unrestricted
from query.toolsets.offers import cost, without_denied
from shared.catalog import IndexedTool, point_id

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.history.recent_calls import CallCounts

MOST_USED = 1_000
"""Tools with more calls come first, then those in more answers; the others are left out."""

ServerTool = tuple[str, str]


class ToolUse(BaseModel):
    """A tool's tokens in the model form, its calls, the callers with calls, and the answers that showed it."""

    model_config = ConfigDict(frozen=True)

    name: str
    tokens: int
    calls: int = 0
    callers: int = 0
    shown: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters of tools by server and name, and the callers with calls."""

    calls: Counter[ServerTool] = field(default_factory=Counter[ServerTool])
    shown: Counter[ServerTool] = field(default_factory=Counter[ServerTool])
    callers: dict[ServerTool, set[str]] = field(default_factory=dict[ServerTool, set[str]])

    @property
    def call_counts(self) -> CallCounts:
        """Return the calls by qualified name."""
        return frozenset((f"{server}:{tool}", count) for (server, tool), count in self.calls.items())

    @property
    def points(self) -> list[str]:
        """Return the points of the MOST_USED tools, the most called first."""
        ordered = sorted(self.calls, key=lambda tool: (-self.calls[tool], -self.shown[tool], tool))
        return [point_id(server, tool) for server, tool in ordered[:MOST_USED]]

    def of(self, tool: IndexedTool, catalogue: Catalogue) -> ToolUse:
        """Return the use of a tool; tokens are in the encoding of the service, since budgets are."""
        key = tool.server_id, tool.definition.name
        return ToolUse(
            name=tool.qualified_name,
            tokens=cost(tool, catalogue.encoding),
            calls=self.calls[key],
            callers=len(self.callers.get(key, ())),
            shown=self.shown[key],
        )


def usage_of(sums: Sums, viewer: Caller, caller: Caller, catalogue: Catalogue) -> Usage:
    """Return the usage of the tools in the caller's toolset by `calls` and `answers`, as far as the viewer may see it.

    An unrestricted viewer sees that of all callers, any other its own. Replicas count as the server that represents
    them, as of the ledger's last refresh.
    """
    sets, within, usage = catalogue.ledger.replica_sets(caller.scope), caller.scope.within, Usage()
    for (name, server, tool), counts in sums.items():
        calls, shown = counts.get("calls", 0), counts.get("answers", 0)
        is_inside = server not in ("", OTHERS) and (within is None or within.admits(server, tool))
        if is_inside and (calls or shown) and may_see(viewer, name):
            key = sets.representative(server), tool
            usage.calls[key] += calls
            usage.shown[key] += shown
            if calls:
                usage.callers.setdefault(key, set()).add(name)
    return usage


def usable_tools(points: Iterable[str], caller: Caller, catalogue: Catalogue) -> list[IndexedTool]:
    """Return the tools of these points that run in the caller's scope and that its policy does not deny.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    found = catalogue.index.get(list(points))
    rules, sets = catalogue.read_policy().of(caller), catalogue.ledger.replica_sets(caller.scope)
    return without_denied((tool for tool in found.values() if caller.scope.contains(tool)), rules, sets)


def may_see(viewer: Caller, caller: str) -> bool:
    """Return whether the viewer may see the use of this caller."""
    return is_unrestricted(viewer) or viewer.name == caller
