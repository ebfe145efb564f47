"""`toolscale status`: the numbers of the intent store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

from pydantic import BaseModel, ConfigDict

from shared.intents.intents import open_intents
from shared.quoting import printable
from shared.settings import Settings
from toolscale.client.servers import state


class Status(BaseModel):
    """The number of known servers, in total and by state, and the backlog; `overdue_s` is in seconds.

    `changed` has the number of changed definitions that no operator has accepted, by server.
    """

    model_config = ConfigDict(frozen=True)

    servers: int
    states: dict[str, int]
    due: int
    overdue_s: float
    dead_letters: int
    changed: dict[str, int] = {}


def status(settings: Settings) -> Status:
    """Return the status of the intent store.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        known = list(intents.intents())
        backlog = intents.backlog()
    states = Counter(state(intent).partition(" (")[0] for intent in known)
    return Status(
        servers=states.total(),
        states=dict(sorted(states.items())),
        due=backlog.due,
        overdue_s=round(backlog.overdue_s, 1),
        dead_letters=backlog.dead_letters,
        changed={intent.server_id: intent.unaccepted for intent in known if intent.unaccepted},
    )


def view(status: Status) -> Iterator[str]:
    """Yield the status in lines."""
    states = ", ".join(f"{number:,} {name}" for name, number in status.states.items())
    late = f", the first for {status.overdue_s:,.0f} s" if status.due else ""
    yield f"servers          {status.servers:,}" + (f": {states}" if states else "")
    yield f"reconciles due   {status.due:,}{late}"
    yield f"dead letters     {status.dead_letters:,}"
    if status.changed:
        servers = f"{len(status.changed):,} {'server' if len(status.changed) == 1 else 'servers'}"
        first = printable(next(iter(status.changed)))
        yield f"changed tools    {sum(status.changed.values()):,} on {servers}: `toolscale diff {first}`"
