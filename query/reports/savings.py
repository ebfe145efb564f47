"""What was saved in a period, gross and net. Arithmetic alone, no I/O.

A search's saving compares its answer with all tools; a client that lists all tools does so once per session, however
often it asks then. A stateless service cannot see sessions, so the net is given for the two ends of what may be:
every search that is no repeat in a session of its own, and each caller with one session a day.
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
    """Searches, and the tokens as each answer stated them."""

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
    """Tokens saved after all that finding costs: our own definitions, what was returned, repeats; may be negative."""

    model_config = ConfigDict(frozen=True)

    if_each_search_is_a_session: int
    if_callers_have_one_session_a_day: int
    own_definitions_tokens: int
    """What the definitions of our own tools cost a session, on average."""


class UsageRow(BaseModel):
    """How often tools of a server, or a tool, were in an answer, and what their definitions take each time together.

    `returned_tokens` is what they took as they were shown. `tokens_saved` is what searches saved by doing without the
    definitions of this server; None: of a tool, of a server among the others, and of one that no search was measured
    against. `calls` went to the server through us; `response_bytes` is how long their results were in JSON, together.
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
    """What a context would cost that is given all tools, as it last was on that day, and what it is made of."""

    servers: int
    tools: int
    tokens: int


class SavingsReport(BaseModel):
    """The savings of a period; without a search there is nothing to break even."""

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
        """Return the report as it is sent, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)


def report(
    rows: Rows, first: date, last: date, can_see: Callable[[RowKey], bool] = lambda _: True, sizes: Sizes | None = None
) -> SavingsReport:
    """Return the savings in these rows; what `shows` denies is summed under one name for all others.

    `shows` is asked of tools, and of servers, whose keys have no tool.
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
    """Return what a caller saved on a day if all its searches shared one session."""
    sessions = _sessions(counters)
    once = counters.get("baseline_tokens", 0) - counters.get("own_tokens", 0)
    return (round(once / sessions) if sessions else 0) - counters.get("returned_tokens", 0)


def _sessions(counters: Mapping[str, int]) -> int:
    """Return the searches that had need of all tools: those that found something new."""
    return counters.get("searches", 0) - counters.get("found_nothing", 0) - counters.get("repeats", 0)


def _break_even(total: Counter[str]) -> int | None:
    """Return how many tools of the mean size cost a session what finding costs it."""
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
    """Return the most frequent names first, SHOWN of them, and the rest as one."""
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
