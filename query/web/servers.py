"""The servers in a caller's scope with their costs to a context: the rows of the page's tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from query.answers.detail import share
from query.replicas import set_key
from shared.text.tokens import PROFILE, Profile

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.savings import Baseline
    from shared.catalog import Encoding, Scope, ServerRecord, ServerState


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server, its state, and the cost of its tools for this caller; None if they cannot be found.

    `part` is its share of the cost of the caller's scope, 0 to 1.
    """

    record: ServerRecord
    state: ServerState
    tools: int | None
    tokens: int | None
    part: float | None

    @property
    def needs_attention(self) -> bool:
        """Return whether an operator should look at the server."""
        has_unusual_tools = bool(self.record.rejected or self.record.marked or self.record.unaccepted)
        return self.state in ("failing", "stale", "quarantined") or has_unusual_tools


@dataclass(frozen=True, slots=True)
class SetRow:
    """A server, or servers with the same tools by their last listings, by id."""

    rows: Sequence[ServerRow]

    @property
    def server_id(self) -> str:
        """Return the first server."""
        return self.rows[0].record.server_id

    @property
    def states(self) -> Sequence[tuple[ServerState, int]]:
        """Return the number of servers in each state, the most common first."""
        states: Counter[ServerState] = Counter(row.state for row in self.rows)
        return states.most_common()

    @property
    def tools(self) -> int | None:
        """Return the number of tools of one server; None if none of them can be found."""
        return max((row.tools for row in self.rows if row.tools is not None), default=None)

    @property
    def with_changes(self) -> Sequence[ServerRow]:
        """Return the servers with changed definitions that no operator has accepted."""
        return [row for row in self.rows if row.record.unaccepted]

    @property
    def tokens(self) -> int | None:
        """Return the cost of all servers."""
        known = [row.tokens for row in self.rows if row.tokens is not None]
        return sum(known) if known else None

    @property
    def tokens_of_one(self) -> int:
        """Return the cost of one server."""
        return max((row.tokens for row in self.rows if row.tokens is not None), default=0)

    @property
    def last_listed_at(self) -> float | None:
        """Return the time of the oldest last listing, in seconds since the epoch."""
        return min(row.record.last_listed_at or 0 for row in self.rows) or None


@dataclass(frozen=True, slots=True)
class ServerTable:
    """All servers of a caller's scope, by id, the same in their replica sets, and the total cost of the running ones.

    `sets` are ordered by their first server.
    """

    rows: Sequence[ServerRow]
    sets: Sequence[SetRow]
    tools: int
    tokens: int
    encoding: Encoding
    profile: Profile = PROFILE

    @property
    def running(self) -> int:
        """Return the number of servers whose tools can be found."""
        return sum(row.tools is not None for row in self.rows)

    @property
    def distinct_tools(self) -> int:
        """Return the number of tools with one server of each replica set."""
        return sum(of_set.tools or 0 for of_set in self.sets)

    @property
    def distinct_tokens(self) -> int:
        """Return the cost of one server of each replica set."""
        return sum(of_set.tokens_of_one for of_set in self.sets)

    def part(self, of_set: SetRow) -> float | None:
        """Return the share of these servers in the cost of the caller's scope, 0 to 1."""
        return share(of_set.tokens, self.tokens)

    def row(self, server_id: str) -> ServerRow | None:
        """Return the server of this id, None if the scope has none."""
        return next((row for row in self.rows if row.record.server_id == server_id), None)

    def set_of(self, row: ServerRow) -> SetRow:
        """Return the replica set of a server."""
        return next(of_set for of_set in self.sets if row in of_set.rows)


def servers_for(caller: Caller, catalogue: Catalogue) -> ServerTable:
    """Return the servers of the caller's scope, including stopped ones.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    ledger, encoding = catalogue.ledger, catalogue.encoding
    costs = ledger.by_server(caller.scope, encoding)
    tokens = sum(cost.model_tokens for cost in costs.values())
    records = ledger.known(caller.scope)
    rows = [_row(record, costs.get(record.server_id), tokens) for record in records]
    sets = _sets(rows, caller.scope)
    return ServerTable(rows, sets, sum(cost.tools for cost in costs.values()), tokens, encoding)


def _sets(rows: Iterable[ServerRow], scope: Scope) -> list[SetRow]:
    sets: dict[tuple[str, str], list[ServerRow]] = defaultdict(list)
    for row in rows:
        sets[set_key(row.record, scope)].append(row)
    return [SetRow(of_set) for of_set in sets.values()]


def _row(record: ServerRecord, cost: Baseline | None, total: int) -> ServerRow:
    state = record.state
    if cost is None or state in ("failing", "waiting", "installing"):
        return ServerRow(record, state, None, None, None)
    return ServerRow(record, state, cost.tools, cost.model_tokens, share(cost.model_tokens, total))


def by_tokens(of_set: SetRow) -> tuple[float, str]:
    """Return a key that sorts the most expensive servers first."""
    return -(of_set.tokens or 0), of_set.server_id
