"""What an intent store can do; one test suite holds both implementations to it.

A Celery message on Redis can be lost, so it is only a wake-up. The intent is the record: per server a *desired*
generation, raised by every event, and a *committed* one, raised when the index equals what the server offered.
A server whose committed generation lags is looked at again by the sweep, whatever became of the message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from shared.events import ServerAnnouncement, ServerEvent

# One death says little: a worker looks at several servers at the same time, and at most one of them is the cause.
SUSPECTED_AFTER = 2


class Intent(BaseModel):
    """What one server should be, and how far the index is. Times are seconds since the epoch by the store's clock.

    `awaited`: a message was sent and no look has begun since, so another message would add nothing. One that comes
    during a look finds its lease held; when the look ends, the intent says whether to send another.
    `attempts` counts looks begun since the last that ended, so those that took their worker with them;
    `failures` those in a row that ended in an error.
    `internal_failures` counts looks that ended for a reason of our own, since the last that gave a list.
    `parked` is said of a server whose looks killed too many workers in a row; see `IntentStore.park`.
    `early_retry_used`: word of a change brought a suspect a look before its time; it does so once until a look ends.
    `last_error` is why the last look gave no list; None after one that did.
    `announced_at` is when the server was last announced, which gives it time to be reached.
    `listed_at` is when the last look gave a list; None: none has yet.
    `due_at` is when the sweep asks for the next look.
    `not_before` is when the next look may begin, unless something new is announced.
    `traceparent` continues the trace of the event that asks for the next look.
    """

    model_config = ConfigDict(frozen=True)

    server_id: str
    status: Literal["running", "stopped"]
    announcement: ServerAnnouncement
    source: str
    desired: int
    committed: int = 0
    message_pending: bool = False
    attempts: int = 0
    parked: bool = False
    early_retry_used: bool = False
    failures: int = 0
    internal_failures: int = 0
    announced_at: float = 0.0
    listed_at: float | None = None
    last_error: str | None = None
    due_at: float | None = None
    not_before: float = 0.0
    traceparent: str | None = None

    @property
    def is_throttled(self) -> bool:
        """Return whether a look is asked for that came too soon: a message or the sweep brings it at `not_before`."""
        return self.message_pending and 0 < self.not_before == self.due_at

    @property
    def is_lagging(self) -> bool:
        """Return whether an event was recorded that the index does not reflect yet."""
        return self.desired > self.committed

    @property
    def is_suspect(self) -> bool:
        """Return whether it was looked at when workers died, several times in a row: it may be the cause."""
        return self.attempts >= SUSPECTED_AFTER


class DeadLetter(BaseModel):
    """A refused message: when (seconds since the epoch), why, and its first 10,000 characters."""

    model_config = ConfigDict(frozen=True)

    at: float
    reason: str
    body: str


# At most 100 MB: enough to see a pattern, too few to fill a disk or Redis.
DEAD_LETTER_LIMIT = 10_000
LETTER_CHARACTERS = 10_000


class MigrationProgress(BaseModel):
    """How far the edition of a coming model is: its tools hold for `done` of all `servers`, as of `at`.

    Once all are done it is checked from the beginning, and takes over. `at` is in seconds by the store's clock.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    servers: int
    done: int
    at: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is to be done: servers that have an intent, looks whose time has come, and refused messages that are kept.

    `overdue_s` is how long the first of those looks has waited for a sweep; 0 where none is due.
    """

    servers: int
    due: int
    overdue_s: float
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The intent after an event, and whether a message must be sent: none is under way yet."""

    intent: Intent
    needs_message: bool


class Lease(Protocol):
    """The right to write one server's tools, renewed in the background until released."""

    def assert_held(self) -> None:
        """Raise LeaseHeld when the lease was lost, so that a run that was frozen cannot write late."""
        ...


class IntentStore(Protocol):
    """Intents, leases, claims, revisions and dead letters. Safe to call from several threads and processes.

    Every method raises IntentsUnavailable when the store does not answer.
    """

    def record(self, event: ServerEvent, *, due_in_s: float) -> Recorded:
        """Write down what the event asks and raise the desired generation; durable on return.

        The sweep leaves it alone for `due_in_s` seconds, the time for its message to be acted upon.

        Raises:
            EventInvalid: it speaks of a server that was never announced.
        """
        ...

    def intent(self, server_id: str) -> Intent | None:
        """Return a server's intent, or None when it was never announced or what is stored cannot be read."""
        ...

    def intents(self) -> Iterator[Intent]:
        """Return the intents of all announced servers that can be read."""
        ...

    def begin(self, server_id: str) -> Intent | None:
        """Return the intent at the beginning of a look, or None when no look is asked for.

        Counts an attempt and puts the next one off, before the look: a look that kills its worker backs off too.
        A suspect is looked at only when `claim_due` says so: neither a message that is delivered again nor an
        announcement with nothing new in it brings it back to a worker that has just started.
        """
        ...

    def commit(self, server_id: str, generation: int) -> Intent:
        """Note that the index reflects this generation; never lowers it. Returns the intent after that."""
        ...

    def fail(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Note that a look at this generation ended in an error. Returns the intent after that.

        The next one waits longer each time, unless an event has asked for it meanwhile.
        """
        ...

    def retry_later(self, server_id: str) -> Intent:
        """Note that a look ended for a reason that is not the server's: it counts as no attempt.

        The next one waits longer each time, until a commit.
        """
        ...

    def park(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Note that the server's looks keep killing their workers. Returns the intent after that.

        It is looked at once in the longest wait, until a look ends: a server that kills workers costs one each time,
        and one that was blamed for another's deaths is back after the first. Word of a change asks for one look at
        once, and the next word for none; a server that went down or is announced differently starts over.
        """
        ...

    def stop_retrying(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Plan no further look until an event after this generation asks for one. Returns the intent after that."""
        ...

    def clear_pending_messages(self) -> None:
        """Note that no message is under way: for a broker in memory, at the start of its process."""
        ...

    def claim_due(self, limit: int) -> list[str]:
        """Return servers whose time for a look has come, at most `limit`, and plan the one after.

        Those that lag, and those last looked at a resync interval ago. Two sweeps never get the same server at the
        same time.
        """
        ...

    def insert_if_absent(self, intent: Intent) -> bool:
        """Write down an intent for a server that has none; return whether it had none."""
        ...

    def is_complete(self) -> bool:
        """Return whether the store was marked and has kept it: one that was wiped, or is new, is not."""
        ...

    def mark_complete(self) -> None:
        """Mark the store as one that holds all servers there are."""
        ...

    def lease(self, server_id: str) -> AbstractContextManager[Lease]:
        """Hold the server for this run.

        Raises:
            LeaseHeld: another run holds it.
        """
        ...

    def claim(self, keys: Collection[str]) -> AbstractContextManager[frozenset[str]]:
        """Hold, until the block ends, those of these keys that nobody holds; yields them, and waits for none.

        A dead holder's claims expire as its leases do. One that was suspended for too long may not hold what it thinks.
        """
        ...

    def now(self) -> float:
        """Return seconds since the epoch by the store's clock, which all who share the store have in common."""
        ...

    def next_revision(self) -> int:
        """Return microseconds since the epoch, always more than any revision before, also after the store was lost."""
        ...

    def note_migration(self, progress: MigrationProgress | None) -> None:
        """Keep how far the migration is, for people to see beside the index; None: there is none."""
        ...

    def migration(self) -> MigrationProgress | None:
        """Return what was noted last, None when there is no migration."""
        ...

    def add_dead_letter(self, reason: str, body: str) -> None:
        """Keep a refused message for people to see."""
        ...

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest refused messages, newest first."""
        ...

    def backlog(self) -> Backlog:
        """Return what is to be done now; it costs no more where there are many servers."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...
