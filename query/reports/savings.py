"""The savings report of a period, gross and net: pure arithmetic, no I/O.

A search's saving compares its answer with all tools; a client that lists all tools does so once per session. A
stateless service cannot see sessions, so the report gives the net for both extremes: a session for every search that
is no repeat, and one session a day for each caller.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date

from pydantic import BaseModel, ConfigDict

from query.history.store import RowKey, Rows, ServerSize, Sizes
from query.savings.savings import OTHERS

SHOWN = 20


class Sums(BaseModel):
    """Numbers of searches, and sums of the tokens that their answers stated."""

    model_config = ConfigDict(frozen=True)

    searches: int
    found_nothing: int
    repeat_searches: int
    returned_tokens: int
    tokens_saved: int


class _Day(BaseModel):
    day: date


class DaySums(Sums, _Day):
    """The sums of one day, UTC."""


class Net(BaseModel):
    """Tokens saved minus the cost of our own definitions, returned tools and repeats; may be negative."""

    model_config = ConfigDict(frozen=True)

    if_each_search_is_a_session: int
    if_callers_have_one_session_a_day: int
    own_definitions_tokens: int
    """The mean cost of our own tools' definitions per session."""


class UsageRow(BaseModel):
    """Usage of one tool, or of one server's tools: answers that had them, and the sum of their definitions' tokens.

    `returned_tokens` sums the tokens of the returned form. `tokens_saved` is the saving by leaving out this server's
    definitions; None for a tool, for the sum of others, and for a server without a search. `response_bytes` sums the
    results of `calls` in JSON.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    answers: int
    definition_tokens: int
    returned_tokens: int = 0
    tokens_saved: int | None = None
    calls: int = 0
    failed_calls: int = 0
    response_bytes: int = 0


class CatalogueDay(_Day):
    """The cost of a context with all tools, at the last sample of the day."""

    servers: int
    tools: int
    tokens: int


class SavingsReport(BaseModel):
    """The savings of a period; `break_even_tools` is None without a search."""

    model_config = ConfigDict(frozen=True)

    first_day: date
    last_day: date
    totals: Sums
    net: Net
    break_even_tools: int | None = None
    advice: str
    by_day: list[DaySums]
    by_server: list[UsageRow]
    by_tool: list[UsageRow]
    catalogue: list[CatalogueDay]

    def as_object(self) -> dict[str, object]:
        """Return the report as JSON values, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)


def report(
    rows: Rows, first: date, last: date, can_see: Callable[[RowKey], bool] = lambda _: True, sizes: Sizes | None = None
) -> SavingsReport:
    """Return the report of these rows; rows that `can_see` rejects are summed as OTHERS.

    `can_see` receives the keys of tools, and of servers, whose keys have no tool.
    """
    callers = {key: counters for key, counters in rows.items() if not key.server}
    servers = {key: counters for key, counters in rows.items() if key.server}
    tools = {key: counters for key, counters in servers.items() if key.tool}
    total = _summed(callers.values())
    break_even = _break_even(total)
    named = {key: OTHERS not in (key.server, key.tool) and can_see(key) for key in servers}
    return SavingsReport(
        first_day=first,
        last_day=last,
        totals=Sums(**_stated(total)),
        net=_net(total, callers),
        break_even_tools=break_even,
        advice=_advice(break_even),
        by_day=[DaySums(day=day, **_stated(_of_day(callers, day))) for day in sorted({key.day for key in callers})],
        by_server=_ranked((key.server if named[key] else OTHERS, counters) for key, counters in servers.items()),
        by_tool=_ranked(
            (f"{key.server}:{key.tool}" if named[key] else OTHERS, counters) for key, counters in tools.items()
        ),
        catalogue=[_catalogue(day, by_server.values()) for day, by_server in sorted((sizes or {}).items())],
    )


def _net(total: Counter[str], callers: Rows) -> Net:
    sessions = _sessions(total)
    return Net(
        if_each_search_is_a_session=total["baseline_tokens"] - total["own_tokens"] - total["returned_tokens"],
        if_callers_have_one_session_a_day=sum(_of_one_session(counters) for counters in callers.values()),
        own_definitions_tokens=round(total["own_tokens"] / sessions) if sessions else 0,
    )


def _of_one_session(counters: Mapping[str, int]) -> int:
    """Return a caller's saving on a day if all its searches shared one session."""
    sessions = _sessions(counters)
    once = counters.get("baseline_tokens", 0) - counters.get("own_tokens", 0)
    return (round(once / sessions) if sessions else 0) - counters.get("returned_tokens", 0)


def _sessions(counters: Mapping[str, int]) -> int:
    """Return the number of searches that found something new: only those replace a list of all tools."""
    return counters.get("searches", 0) - counters.get("found_nothing", 0) - counters.get("repeats", 0)


def _break_even(total: Counter[str]) -> int | None:
    """Return the number of tools of mean size whose definitions cost a session as much as finding."""
    sessions, tools = _sessions(total), total["baseline_tools"]
    if not sessions or not tools or not total["baseline_tokens"]:
        return None
    finding = (total["own_tokens"] + total["returned_tokens"]) / sessions
    return math.ceil(finding / (total["baseline_tokens"] / tools))


def _advice(break_even: int | None) -> str:
    if break_even is None:
        return "Nothing was found in this period, so there is nothing to compare with listing all."
    return f"Below {break_even} tools in this catalogue, listing all is cheaper."


def _of_day(callers: Rows, day: date) -> Counter[str]:
    return _summed(counters for key, counters in callers.items() if key.day == day)


def _summed(rows: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counters in rows:
        total.update(counters)
    return total


def _stated(total: Counter[str]) -> dict[str, int]:
    return {
        "searches": total["searches"],
        "found_nothing": total["found_nothing"],
        "repeat_searches": total["repeats"],
        "returned_tokens": total["returned_tokens"],
        "tokens_saved": total["tokens_saved"],
    }


def _catalogue(day: date, sizes: Iterable[ServerSize]) -> CatalogueDay:
    held = [size for size in sizes if size.tools]
    return CatalogueDay(
        day=day, servers=len(held), tools=sum(size.tools for size in held), tokens=sum(size.tokens for size in held)
    )


def _ranked(rows: Iterable[tuple[str, Mapping[str, int]]]) -> list[UsageRow]:
    """Return the SHOWN most frequent names, the most frequent first, and the sum of the rest."""
    sums: dict[str, Counter[str]] = {}
    for name, counters in rows:
        sums.setdefault(name, Counter()).update(counters)
    others = sums.pop(OTHERS, Counter())
    ordered = sorted(sums.items(), key=_rank)
    for _, counters in ordered[SHOWN:]:
        others.update(counters)
    shown = ordered[:SHOWN] + ([(OTHERS, others)] if others else [])
    return [
        UsageRow(
            name=name,
            answers=counters["answers"],
            definition_tokens=counters["definition_tokens"],
            returned_tokens=counters["returned_tokens"],
            tokens_saved=counters.get("tokens_saved"),
            calls=counters["calls"],
            failed_calls=counters["failed_calls"],
            response_bytes=counters["response_bytes"],
        )
        for name, counters in shown
    ]


def _rank(used: tuple[str, Counter[str]]) -> tuple[int, int, int, str]:
    name, counters = used
    return -counters["answers"], -counters["calls"], -counters["tokens_saved"], name
