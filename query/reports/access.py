"""The history within a caller's scope: for `get_savings_report` and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from query.caller import Caller
from query.history.periods import days_of, today
from query.history.store import Rows
from query.reports.savings import SavingsReport, report
from shared.catalog import IndexedTool, Scope, point_id

if TYPE_CHECKING:
    from query.catalogue import Catalogue
    from query.history.store import SavingsHistory


def report_for(caller: Caller, period: str, catalogue: Catalogue, history: SavingsHistory) -> SavingsReport:
    """Return the savings of a period within the caller's scope.

    A caller with all groups and no toolset sees the savings of all callers. Any other sees its own lists and answers,
    and the names of tools within its scope.

    Raises:
        ValueError: `days_of` rejects the period.
        HistoryUnavailable, IndexUnavailable: the store or the index did not answer.
    """
    first, last = days_of(period, today())
    rows = history.rows(first, last)
    sizes = history.total_sizes(first, last, _whole_servers(caller, catalogue))
    if is_unrestricted(caller):
        return report(rows, first, last, sizes=sizes)
    own = {key: counters for key, counters in rows.items() if key.caller == caller.name}
    visible = _visible(own, caller.scope, catalogue)
    return report(own, first, last, lambda key: (key.server, key.tool) in visible, sizes)


def _whole_servers(caller: Caller, catalogue: Catalogue) -> frozenset[str] | None:
    """Return the servers whose tools are all in the caller's scope; None: all servers."""
    if is_unrestricted(caller):
        return None
    known = (record.server_id for record in catalogue.ledger.known(caller.scope))
    return frozenset(server_id for server_id in known if sees_whole(caller, server_id))


def sees_whole(caller: Caller, server_id: str) -> bool:
    """Return whether the caller's scope has all tools of a server in it, if it has any."""
    selection = caller.scope.within
    return selection is None or server_id in selection.servers


def is_unrestricted(caller: Caller) -> bool:
    """Return whether the caller may see every server, including those without groups."""
    return caller.groups is None and caller.toolset is None


def _visible(rows: Rows, scope: Scope, catalogue: Catalogue) -> set[tuple[str, str]]:
    tools = sorted({(key.server, key.tool) for key in rows if key.server})
    ids = {point_id(server, tool): (server, tool) for server, tool in tools}
    held = catalogue.pinned().index.get(list(ids))
    return {ids[point] for point, tool in held.items() if _admits(scope, tool)}


def _admits(scope: Scope, tool: IndexedTool) -> bool:
    """Return whether the scope contains this tool, running or not."""
    is_in_groups = scope.groups is None or not scope.groups.isdisjoint(tool.groups)
    return is_in_groups and (scope.within is None or scope.within.admits(tool.server_id, tool.definition.name))
