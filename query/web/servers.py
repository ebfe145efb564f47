"""The servers in a caller's scope with their costs to a context: the rows of the page's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from query.savings.context import share
from shared.text.forms import PROFILE, Profile

if TYPE_CHECKING:
    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.savings.savings import Baseline
    from shared.catalog import Encoding, ServerRecord

State = Literal["fresh", "stale", "awaited", "stopped", "quarantined"]


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server, its state, and the cost of its tools for this caller; None if they cannot be found.

    `part` is its share of the cost of the caller's scope, 0 to 1.
    """

    record: ServerRecord
    state: State
    tools: int | None
    tokens: int | None
    part: float | None

    @property
    def needs_attention(self) -> bool:
        """Return whether an operator should look at the server."""
        return self.state in ("stale", "quarantined") or bool(self.record.rejected)


@dataclass(frozen=True, slots=True)
class ServerTable:
    """All servers of a caller's scope, by id, and the total cost of the running ones."""

    rows: Sequence[ServerRow]
    tools: int
    tokens: int
    encoding: Encoding
    profile: Profile = PROFILE

    @property
    def running(self) -> int:
        """Return the number of servers whose tools can be found."""
        return sum(row.tools is not None for row in self.rows)

    def row(self, server_id: str) -> ServerRow | None:
        """Return the server of this id, None if the scope has none."""
        return next((row for row in self.rows if row.record.server_id == server_id), None)


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
    return ServerTable(rows, sum(cost.tools for cost in costs.values()), tokens, encoding)


def _row(record: ServerRecord, cost: Baseline | None, total: int) -> ServerRow:
    state = state_of(record)
    if cost is None or state == "awaited":
        return ServerRow(record, state, None, None, None)
    return ServerRow(record, state, cost.tools, cost.model_tokens, share(cost.model_tokens, total))


def state_of(record: ServerRecord) -> State:
    """Return the state of a server."""
    if record.status != "running":
        return record.status
    if record.stale_since is not None:
        return "stale"
    return "fresh" if record.is_listed else "awaited"
