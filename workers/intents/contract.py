"""What an intent store can do; one test suite holds both implementations to it.

A Celery message on Redis can be lost, so it is only a wake-up. The intent is the record: per server a *desired*
generation, raised by every event, and a *committed* one, raised when the index equals what the server offered.
A server whose committed generation lags is looked at again by the sweep, whatever became of the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from shared.errors import EventInvalid
from shared.events import ServerAnnouncement, ServerDown, ServerEvent, ServerUp


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds until a server is looked at again: doubling with each failed look, up to a bound."""

    first_s: float
    longest_s: float

    def after(self, failures: int) -> float:
        """Return the wait after this many looks in a row without a commit."""
        return min(self.longest_s, self.first_s * 2.0 ** min(max(failures - 1, 0), 30))


class Intent(BaseModel):
    """What one server should be, and how far the index is.

    `attempts` counts looks begun since the last commit, those that a crash cut short included.
    `due_at` (seconds since the epoch) is when the sweep may send it again.
    """

    model_config = ConfigDict(frozen=True)

    server_id: str
    status: Literal["running", "stopped"]
    announcement: ServerAnnouncement
    source: str
    desired: int
    committed: int = 0
    attempts: int = 0
    due_at: float = 0.0

    @property
    def is_lagging(self) -> bool:
        """Return whether an event was recorded that the index does not reflect yet."""
        return self.desired > self.committed


class DeadLetter(BaseModel):
    """A refused message: when (seconds since the epoch), why, and its first 10,000 characters."""

    model_config = ConfigDict(frozen=True)

    at: float
    reason: str
    body: str


LETTER_CHARACTERS = 10_000


class Lease(Protocol):
    """The right to write one server's tools, renewed in the background until released."""

    def assert_held(self) -> None:
        """Raise LeaseHeld when the lease was lost, so that a run that was frozen cannot write late."""
        ...


class IntentStore(Protocol):
    """Intents, leases, revisions and dead letters. Safe to call from several threads and processes.

    Every method raises IntentsUnavailable when the store does not answer.
    """

    def record(self, event: ServerEvent, *, due_in_s: float) -> Intent:
        """Write down what the event asks and raise the desired generation; durable on return.

        The sweep leaves it alone for `due_in_s` seconds, the time for its message to be acted upon.

        Raises:
            EventInvalid: it speaks of a server that was never announced.
        """
        ...

    def intent(self, server_id: str) -> Intent | None:
        """Return a server's intent, or None when it was never announced."""
        ...

    def intents(self) -> Iterator[Intent]:
        """Return the intents of all announced servers."""
        ...

    def begin(self, server_id: str) -> Intent | None:
        """Count an attempt and put the next one off, before the look: a look that kills its worker backs off too."""
        ...

    def commit(self, server_id: str, generation: int) -> Intent:
        """Note that the index reflects this generation; never lowers it. Returns the intent after that."""
        ...

    def claim_due(self, limit: int) -> list[str]:
        """Return lagging servers whose time has come, at most `limit`, and put each off by its backoff.

        Two sweeps never get the same server at the same time.
        """
        ...

    def lease(self, server_id: str) -> AbstractContextManager[Lease]:
        """Hold the server for this run.

        Raises:
            LeaseHeld: another run holds it.
        """
        ...

    def next_revision(self) -> int:
        """Return microseconds since the epoch, always more than any revision before, also after the store was lost."""
        ...

    def bury(self, reason: str, body: str) -> None:
        """Keep a refused message for people to see."""
        ...

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest refused messages, newest first."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...


def apply_event(before: Intent | None, event: ServerEvent) -> Intent:
    """Return the intent after an event; the latest recorded one decides.

    Raises:
        EventInvalid: it speaks of a server that was never announced.
    """
    if isinstance(event, ServerUp):
        return Intent(
            server_id=event.data.server_id,
            status="running",
            announcement=event.data,
            source=event.source,
            desired=(before.desired if before else 0) + 1,
            committed=before.committed if before else 0,
        )
    if before is None:
        raise EventInvalid("data.server_id", f"no server {event.data.server_id!r} was ever announced")
    status = "stopped" if isinstance(event, ServerDown) else before.status
    return before.model_copy(update={"status": status, "desired": before.desired + 1, "attempts": 0})
