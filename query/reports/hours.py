"""Net savings and the cost of the context by hour, for the charts of a history of few days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from query.history.periods import HOUR, day_of, this_hour
from query.history.store import HOURS_KEEP_DAYS, Row, Rows, summed
from query.reports.savings import net_of

if TYPE_CHECKING:
    from query.history.store import SavingsHistory


class Hours(NamedTuple):
    """Net tokens saved and the cost of all tools, by hour; hours without use or without a service are left out."""

    net: Mapping[date, int]
    context: Mapping[date, int]


def hours_of(history: SavingsHistory, caller: str | None = None) -> Hours:
    """Return the hours that this history of hours keeps, of all callers and servers.

    Of one caller, they have no context: sizes are kept by hour for all servers together.

    Raises:
        HistoryUnavailable: the store did not answer.
    """
    first, last = this_hour() - timedelta(days=HOURS_KEEP_DAYS) + HOUR.length, this_hour()
    rows = history.rows(first, last)
    if caller is not None:
        return Hours(net_by_hour({key: counts for key, counts in rows.items() if key.caller == caller}), {})
    totals = history.total_sizes(first, last)
    return Hours(net_by_hour(rows), {hour: total.tokens for hour, total in totals.items()})


def net_by_hour(rows: Rows) -> dict[date, int]:
    """Return the net tokens that each hour added to those of its day.

    A list in one hour and its first answer in the next claim their baseline in the second one, so the hours of a day
    sum up to the day.
    """
    nets: dict[date, int] = {}
    for day, of_day in groupby(sorted(rows.items(), key=itemgetter(0)), lambda row: day_of(row[0].day)):
        nets |= _nets(day, of_day)
    return nets


def _nets(day: date, of_day: Iterable[Row]) -> dict[date, int]:
    nets: dict[date, int] = {}
    so_far: Rows = {}
    before = 0
    for hour, of_hour in groupby(of_day, lambda row: row[0].day):
        so_far = summed(chain(so_far.items(), ((key._replace(day=day), counts) for key, counts in of_hour)))
        net = net_of(so_far)
        nets[hour], before = net - before, net
    return nets
