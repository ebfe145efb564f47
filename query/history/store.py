"""The events and rows of the history, the contract of its stores, and their common part."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, Protocol

from typing_extensions import override

from query.savings.savings import OTHERS

# A search that finds no tool beyond the same caller's previous search, within this time, is a repeat.
REPEAT_WITHIN_S = 600
# Beyond this limit, callers, servers and tools that are new to the day are summed as OTHERS. A caller has two
# counters for each server with a saving, and five for each tool.
MAX_COUNTERS_A_DAY = 25_000

CounterName = Literal[
    "answers",
    "searches",
    "found_nothing",
    "repeats",
    "baseline_tokens",
    "baseline_tools",
    "own_tokens",
    "returned_tokens",
    "definition_tokens",
    "tokens_saved",
    "calls",
    "failed_calls",
    "response_bytes",
]


@dataclass(frozen=True, slots=True)
class SearchEvent:
    """The baseline of a search.

    `baseline_tokens` and `baseline_tools` sum all tools that the caller may see; `own_tokens` is the cost of our own
    tools' definitions. `saved_by_server` divides `tokens_saved` among servers and OTHERS.
    """

    baseline_tokens: int
    baseline_tools: int
    own_tokens: int
    tokens_saved: int
    saved_by_server: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """The tools of one answer.

    `tools` has the tokens of their definitions by server and tool, `shown_tokens` the tokens in the form they were
    returned in; `returned_tokens` is the sum of that form. `search` is None if the answer belongs to no new search.
    """

    day: date
    caller: str
    tools: Mapping[tuple[str, str], int]
    returned_tokens: int
    search: SearchEvent | None = None
    shown_tokens: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


@dataclass(frozen=True, slots=True)
class CallEvent:
    """One call of a tool, with the length of its result in JSON; a failed call may have no result."""

    day: date
    caller: str
    server: str
    tool: str
    response_bytes: int
    is_failed: bool = False


UsageEvent = AnswerEvent | CallEvent


@dataclass(frozen=True, slots=True)
class ServerSize:
    """The cost of all tools of a server; 0 if the server has no tools that can be found."""

    tools: int
    tokens: int


Sizes = Mapping[date, Mapping[str, ServerSize]]


@dataclass(frozen=True, slots=True, order=True)
class RowKey:
    """Key of a row: a caller's answers on a day, the saving of one server in them, or one tool in them."""

    day: date
    caller: str
    server: str = ""
    tool: str = ""

    @property
    def overflow(self) -> RowKey:
        """Return the row that counts for this one beyond MAX_COUNTERS_A_DAY."""
        return RowKey(self.day, OTHERS, OTHERS if self.server else "", OTHERS if self.tool else "")


Rows = Mapping[RowKey, Mapping[str, int]]


class SavingsHistory(Protocol):
    """Counters by day, caller, server and tool, and the servers' sizes by day. Safe to call from several threads.

    A day is kept for `keep_days`. It has at most MAX_COUNTERS_A_DAY, those of OTHERS, and a size per server.
    Every method raises HistoryUnavailable when the store does not answer.
    """

    def add(self, events: Sequence[UsageEvent]) -> None:
        """Count these answers and calls, in their order."""
        ...

    def store_sizes(self, day: date, sizes: Mapping[str, ServerSize]) -> None:
        """Store the day's sizes of these servers, replacing earlier ones."""
        ...

    def sizes(self, first: date, last: date) -> Sizes:
        """Return the sizes by day and server, both days included; days without sizes are left out."""
        ...

    def rows(self, first: date, last: date) -> Rows:
        """Return all rows of these days, both included."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...


class CountedHistory(SavingsHistory, ABC):
    """The common part of the stores: detects repeated searches, and turns events into counters."""

    @override
    def add(self, events: Sequence[UsageEvent]) -> None:
        searches = [event for event in events if isinstance(event, AnswerEvent) and event.search and event.tools]
        before = self._swap_last_answers([(search.caller, tool_set(search)) for search in searches])
        repeats = [search for search, last in zip(searches, before, strict=True) if last and _is_covered(search, last)]
        self._add(_sums(events, frozenset(map(id, repeats))))

    @abstractmethod
    def _swap_last_answers(self, answers: Sequence[tuple[str, str]]) -> list[str | None]:
        """Store the last answer of each caller, and return the previous ones in the same order."""

    @abstractmethod
    def _add(self, sums: Rows) -> None:
        """Add these sums to the rows."""


def tool_set(event: AnswerEvent) -> str:
    """Return the tools of an answer as text."""
    return json.dumps(sorted(event.tools), separators=(",", ":"))


def _is_covered(event: AnswerEvent, last: str) -> bool:
    return set(event.tools) <= {(server, tool) for server, tool in json.loads(last)}


def _sums(events: Iterable[UsageEvent], repeats: frozenset[int]) -> Rows:
    sums: dict[RowKey, Counter[str]] = {}
    for event in events:
        counted = (
            _call_counters(event)
            if isinstance(event, CallEvent)
            else _answer_counters(event, is_repeat=id(event) in repeats)
        )
        for key, counters in counted:
            sums.setdefault(key, Counter()).update(counters)
    return sums


def _call_counters(event: CallEvent) -> Iterator[tuple[RowKey, dict[CounterName, int]]]:
    # 0 answers are also stored: this counter marks the row as existing
    counters: dict[CounterName, int] = {"answers": 0, "calls": 1, "response_bytes": event.response_bytes}
    failed: dict[CounterName, int] = {"failed_calls": 1} if event.is_failed else {}
    yield RowKey(event.day, event.caller, event.server, event.tool), counters | failed


def _answer_counters(event: AnswerEvent, *, is_repeat: bool) -> Iterator[tuple[RowKey, dict[CounterName, int]]]:
    counters: dict[CounterName, int] = {"answers": 1, "returned_tokens": event.returned_tokens}
    yield RowKey(event.day, event.caller), counters | _search_counters(event, is_repeat)
    for (server, tool), tokens in event.tools.items():
        shown_tokens = event.shown_tokens.get((server, tool), tokens)
        counted: dict[CounterName, int] = {"answers": 1, "definition_tokens": tokens, "returned_tokens": shown_tokens}
        yield RowKey(event.day, event.caller, server, tool), counted
    if event.tools and event.search:
        for server, saved in event.search.saved_by_server.items():
            yield RowKey(event.day, event.caller, server), {"answers": 0, "tokens_saved": saved}


def _search_counters(event: AnswerEvent, is_repeat: bool) -> dict[CounterName, int]:
    """Return the counters of a search; an empty or repeated one adds no baseline."""
    if event.search is None:
        return {}
    if not event.tools:
        return {"searches": 1, "found_nothing": 1}
    counters: dict[CounterName, int] = {"searches": 1, "tokens_saved": event.search.tokens_saved}
    if is_repeat:
        counters["repeats"] = 1
        return counters
    counters["baseline_tokens"] = event.search.baseline_tokens
    counters["baseline_tools"] = event.search.baseline_tools
    counters["own_tokens"] = event.search.own_tokens
    return counters
