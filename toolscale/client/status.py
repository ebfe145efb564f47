"""`toolscale status`: the numbers of the intent store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

from pydantic import BaseModel, ConfigDict

from shared.settings import Settings
from toolscale.client.servers import state
from workers.intents import open_intents


class Status(BaseModel):
    """The number of known servers, in total and by state, and the backlog; `overdue_s` is in seconds."""

    model_config = ConfigDict(frozen=True)

    servers: int
    states: dict[str, int]
    due: int
    overdue_s: float
    dead_letters: int


def status(settings: Settings) -> Status:
    """Return the status of the intent store.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        states = Counter(state(intent).partition(" (")[0] for intent in intents.intents())
        backlog = intents.backlog()
    return Status(
        servers=states.total(),
        states=dict(sorted(states.items())),
        due=backlog.due,
        overdue_s=round(backlog.overdue_s, 1),
        dead_letters=backlog.dead_letters,
    )


def view(status: Status) -> Iterator[str]:
    """Yield the status in lines."""
    states = ", ".join(f"{number:,} {name}" for name, number in status.states.items())
    late = f", the first for {status.overdue_s:,.0f} s" if status.due else ""
    yield f"servers          {status.servers:,}" + (f": {states}" if states else "")
    yield f"reconciles due   {status.due:,}{late}"
    yield f"dead letters     {status.dead_letters:,}"
