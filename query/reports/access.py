"""The history within a caller's scope: for `get_savings_report` and the page."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from query.caller import Caller
from query.history.periods import days_of, today
from query.history.store import Rows, Sizes
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
    rows, sizes = history.rows(first, last), sizes_for(caller, first, last, catalogue, history)
    if is_unrestricted(caller):
        return report(rows, first, last, sizes=sizes)
    own = {key: counters for key, counters in rows.items() if key.caller == caller.name}
    visible = _visible(own, caller.scope, catalogue)
    return report(own, first, last, lambda key: (key.server, key.tool) in visible, sizes)


def sizes_for(caller: Caller, first: date, last: date, catalogue: Catalogue, history: SavingsHistory) -> Sizes:
    """Return the sizes by day and server, of servers whose tools are all in the caller's scope.

    Raises:
        HistoryUnavailable, IndexUnavailable: the store, or the index, did not answer.
    """
    sizes = history.sizes(first, last)
    if is_unrestricted(caller):
        return sizes
    selection = caller.scope.within
    whole = {
        record.server_id
        for record in catalogue.ledger.known(caller.scope)
        if selection is None or record.server_id in selection.servers
    }
    return {
        day: {server: size for server, size in by_server.items() if server in whole} for day, by_server in sizes.items()
    }


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
