"""The values of the history, what a store of it promises, and what is the same in every store."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, Protocol

from query.savings.savings import OTHERS

# A search that gives only what the same caller's search before it gave, within this time, is a repeat.
REPEAT_WITHIN_S = 600
# Beyond so many counters a day, callers, servers and tools that are new to the day are summed as OTHERS. A caller has
# two for each of the servers whose saving is told, and five for each tool.
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
class Searched:
    """What an answer to a new question was measured against.

    `baseline_tokens` and `baseline_tools` are all that the caller might see; `own_tokens` is what the definitions
    of our own tools cost it. `saved_by_server` divides `tokens_saved` among servers and OTHERS.
    """

    baseline_tokens: int
    baseline_tools: int
    own_tokens: int
    tokens_saved: int
    saved_by_server: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Given:
    """What one answer gave a caller.

    `tools` has the tokens of their definitions by server and tool, and `shown` those they cost as they were shown;
    `returned_tokens` is what all cost as they were shown. `searched` is None where the answer is no answer to a new
    question.
    """

    day: date
    caller: str
    tools: Mapping[tuple[str, str], int]
    returned_tokens: int
    searched: Searched | None = None
    shown: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


@dataclass(frozen=True, slots=True)
class Called:
    """One call of a tool on its server, and how long its result was in JSON; a failed one may have had none."""

    day: date
    caller: str
    server: str
    tool: str
    response_bytes: int
    is_failed: bool = False


Note = Given | Called


@dataclass(frozen=True, slots=True)
class ServerSize:
    """What a server's tools cost a context that is given all of them; 0 of a server whose tools nobody can find."""

    tools: int
    tokens: int


Sizes = Mapping[date, Mapping[str, ServerSize]]


@dataclass(frozen=True, slots=True, order=True)
class RowKey:
    """Whose counters: of a caller's answers on a day; of a server that they did without; or of one tool in them."""

    day: date
    caller: str
    server: str = ""
    tool: str = ""

    @property
    def overflow(self) -> RowKey:
        """Return where this row is counted once the day has too many."""
        return RowKey(self.day, OTHERS, OTHERS if self.server else "", OTHERS if self.tool else "")


Rows = Mapping[RowKey, Mapping[str, int]]


class SavingsHistory(Protocol):
    """Counters by day, caller, server and tool, and the servers' sizes by day. Safe to call from several threads.

    A day is kept for the store's `keep_days`, and has at most MAX_COUNTERS_A_DAY and those of OTHERS, and a size for
    each server of the catalogue.
    Every method raises HistoryUnavailable when the store does not answer.
    """

    def add(self, notes: Sequence[Note]) -> None:
        """Count these answers and calls, in the order in which they were given."""
        ...

    def keep_sizes(self, day: date, sizes: Mapping[str, ServerSize]) -> None:
        """Keep the sizes of these servers as the day's, in the place of those before."""
        ...

    def sizes(self, first: date, last: date) -> Sizes:
        """Return the sizes of these days, both included, by server; days without any are left out."""
        ...

    def rows(self, first: date, last: date) -> Rows:
        """Return all rows of these days, both included."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...


class CountedHistory(ABC):
    """What is the same in every store: which searches repeat another, and which counters an answer adds to."""

    def add(self, notes: Sequence[Note]) -> None:
        """Count these answers and calls, in the order in which they were given."""
        searches = [each for each in notes if isinstance(each, Given) and each.searched and each.tools]
        before = self._exchange_last([(each.caller, names_of(each)) for each in searches])
        repeats = [each for each, last in zip(searches, before, strict=True) if last and _is_covered(each, last)]
        self._add(_sums(notes, frozenset(map(id, repeats))))

    @abstractmethod
    def _exchange_last(self, given: Sequence[tuple[str, str]]) -> list[str | None]:
        """Remember what each caller was given last, and return what was remembered of it before, in turn."""

    @abstractmethod
    def _add(self, sums: Rows) -> None:
        """Add these sums to the rows."""


def names_of(given: Given) -> str:
    """Return the tools of an answer as text."""
    return json.dumps(sorted(given.tools), separators=(",", ":"))


def _is_covered(given: Given, last: str) -> bool:
    return set(given.tools) <= {(server, tool) for server, tool in json.loads(last)}


def _sums(notes: Iterable[Note], repeats: frozenset[int]) -> Rows:
    sums: dict[RowKey, Counter[str]] = {}
    for each in notes:
        counted = _called(each) if isinstance(each, Called) else _counted(each, is_repeat=id(each) in repeats)
        for key, counters in counted:
            sums.setdefault(key, Counter()).update(counters)
    return sums


def _called(called: Called) -> Iterator[tuple[RowKey, dict[CounterName, int]]]:
    # 0 answers are counted too: by this counter a store knows that it has the row
    counters: dict[CounterName, int] = {"answers": 0, "calls": 1, "response_bytes": called.response_bytes}
    failed: dict[CounterName, int] = {"failed_calls": 1} if called.is_failed else {}
    yield RowKey(called.day, called.caller, called.server, called.tool), counters | failed


def _counted(given: Given, *, is_repeat: bool) -> Iterator[tuple[RowKey, dict[CounterName, int]]]:
    answered: dict[CounterName, int] = {"answers": 1, "returned_tokens": given.returned_tokens}
    yield RowKey(given.day, given.caller), answered | _searched(given, is_repeat)
    for (server, tool), tokens in given.tools.items():
        shown = given.shown.get((server, tool), tokens)
        counted: dict[CounterName, int] = {"answers": 1, "definition_tokens": tokens, "returned_tokens": shown}
        yield RowKey(given.day, given.caller, server, tool), counted
    if given.tools and given.searched:
        for server, saved in given.searched.saved_by_server.items():
            yield RowKey(given.day, given.caller, server), {"answers": 0, "tokens_saved": saved}


def _searched(given: Given, is_repeat: bool) -> dict[CounterName, int]:
    """Return what a search adds; one that found nothing, or what was just given, had no need of all tools anew."""
    if given.searched is None:
        return {}
    if not given.tools:
        return {"searches": 1, "found_nothing": 1}
    found: dict[CounterName, int] = {"searches": 1, "tokens_saved": given.searched.tokens_saved}
    if is_repeat:
        found["repeats"] = 1
        return found
    found["baseline_tokens"] = given.searched.baseline_tokens
    found["baseline_tools"] = given.searched.baseline_tools
    found["own_tokens"] = given.searched.own_tokens
    return found
