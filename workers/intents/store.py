"""The interface of an intent store; one contract test suite covers both implementations.

A Celery message on Redis can be lost, so a message is only a wake-up and the intent is the record.
An event raises a server's *desired* generation; a reconciliation that updated the index raises the *committed* one.
The sweep retries a server whose committed generation lags, even when its message was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from shared.documents import StoredDocument
from shared.events import ServerAnnouncement, ServerEvent
from workers.intents.dead_letters import DeadLetter
from workers.intents.definitions import DefinitionStore

# One death proves little: a worker reconciles several servers at the same time, and at most one is the cause.
SUSPECTED_AFTER = 2


class Intent(StoredDocument):
    """The desired and the committed state of one server. Times are seconds since the epoch by the store's clock.

    `message_pending`: a message was sent and no reconciliation has begun since, so no other message is needed.
    A message that arrives during a reconciliation finds the lease held and is dropped.
    `attempts` counts reconciliations that began since the last that ended, so those that killed their worker.
    `failures` counts reconciliations in a row that ended in an error.
    `internal_failures` counts those that ended for an internal reason since the last successful listing.
    `parked`: reconciliations killed too many workers in a row; see `IntentStore.park`.
    `early_retry_used`: a `changed` event has brought a suspect an early reconciliation; one until one ends.
    `last_error` is the reason why the last listing failed; None after a successful listing.
    `announced_at` is the time of the last announcement, from which a server has time to start.
    `listed_at` is the time of the last successful listing; None before the first. `catalogue_id` identifies its tools.
    `unaccepted` is the number of changed definitions of the last listing that no operator has accepted.
    `due_at` is the time at which the sweep requests the next reconciliation.
    `not_before` is the time at which the next reconciliation may begin; a new announcement resets it.
    `traceparent` continues the trace of the event that requested the next reconciliation.
    """

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
    catalogue_id: str = ""
    unaccepted: int = 0
    last_error: str | None = None
    due_at: float | None = None
    not_before: float = 0.0
    traceparent: str | None = None

    @property
    def is_throttled(self) -> bool:
        """Return whether a requested reconciliation is postponed to `not_before`."""
        return self.message_pending and 0 < self.not_before == self.due_at

    @property
    def is_lagging(self) -> bool:
        """Return whether an event is recorded and not yet reflected in the index."""
        return self.desired > self.committed

    @property
    def is_installing(self) -> bool:
        """Return whether a stdio server is being started that was never listed: it may install packages."""
        is_new = self.status == "running" and self.listed_at is None and not self.parked
        return is_new and self.announcement.transport == "stdio" and self.attempts > 0

    @property
    def is_suspect(self) -> bool:
        """Return whether workers died several times in a row while they reconciled this server."""
        return self.attempts >= SUSPECTED_AFTER


REASON_CHARACTERS = 3_000
"""Of an error in an intent; the end of a server's stderr fits."""


class MigrationProgress(BaseModel):
    """Progress of the next index version: it holds the tools of `done` of all `servers`.

    Once all are done, the migration checks all again and activates the version.
    `at` is the time of the note, in seconds by the store's clock.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    servers: int
    done: int
    at: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """Numbers of servers with an intent, of due reconciliations, and of stored dead letters.

    `overdue_s` is the delay of the first due reconciliation; 0 when none is due.
    """

    servers: int
    due: int
    overdue_s: float
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Intents written since a position, by server; None for an invalid one. `is_complete`: these are all intents.

    `position` is for the next read.
    """

    position: str
    intents: dict[str, Intent | None]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """The intent after an event, and whether the caller must send a message because none is pending."""

    intent: Intent
    needs_message: bool


class Lease(Protocol):
    """The right to write one server's tools, renewed in the background until released."""

    def assert_held(self) -> None:
        """Raise LeaseHeld when the lease was lost, so that a suspended run cannot write late."""
        ...


class IntentStore(DefinitionStore, Protocol):
    """Intents, definitions, leases, claims, revisions and dead letters.

    Safe to call from several threads and processes.
    Every method raises IntentsUnavailable when the store does not answer.
    """

    def record(self, event: ServerEvent, *, due_in_s: float) -> Recorded:
        """Store the effect of the event and raise the desired generation; durable on return.

        The sweep waits `due_in_s` seconds, which leaves the message time to arrive.

        Raises:
            EventInvalid: the event refers to a server that was never announced, or that belongs to another sender.
        """
        ...

    def intent(self, server_id: str) -> Intent | None:
        """Return a server's intent, or None when there is no valid one."""
        ...

    def intents(self) -> Iterator[Intent]:
        """Return the valid intents of all announced servers."""
        ...

    def changes(self, since: str = "") -> Changes:
        """Return the intents written after the position `since`; all intents without it, or after a lost store.

        An earlier release writes intents in Redis without a change.
        """
        ...

    def begin(self, server_id: str) -> Intent | None:
        """Return the intent at the beginning of a reconciliation, or None when none is requested.

        Counts an attempt and postpones the next one first, so that a reconciliation that kills its worker backs off.
        A suspect is reconciled only after `claim_due`: a redelivered message or a repeated announcement does not
        bring it back to a worker that has just started.
        """
        ...

    def commit(
        self, server_id: str, generation: int, catalogue_id: str | None = None, unaccepted: int | None = None
    ) -> Intent:
        """Raise the committed generation to this one; never lowers it. Returns the intent after that.

        Replaces `catalogue_id` and `unaccepted` unless they are None.
        """
        ...

    def fail(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Record that the reconciliation of this generation ended in an error. Returns the intent after that.

        The wait before the next one doubles each time. A newer event cancels it.
        """
        ...

    def retry_later(self, server_id: str) -> Intent:
        """Record that a reconciliation ended for an internal reason, which does not count as an attempt.

        The wait before the next one doubles each time, until a commit.
        """
        ...

    def park(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Record that reconciliations of the server repeatedly killed their workers. Returns the intent after that.

        A parked server is retried once per longest wait, until a reconciliation ends.
        A server that kills workers costs one worker each time; an innocent server returns after the first retry.
        A `changed` event triggers one immediate reconciliation; later ones wait until it ends.
        A server that stopped, or whose announcement changed, starts over.
        """
        ...

    def stop_retrying(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Schedule no reconciliation until an event after this generation. Returns the intent after that."""
        ...

    def clear_pending_messages(self) -> None:
        """Mark all messages as lost: for a broker in memory, at the start of its process."""
        ...

    def claim_due(self, limit: int) -> list[str]:
        """Return at most `limit` servers that are due, and schedule the reconciliation after.

        A server is due when it lags, or a resync interval after its last reconciliation.
        Two concurrent sweeps never get the same server.
        """
        ...

    def insert_if_absent(self, intent: Intent) -> bool:
        """Store an intent for a server that has none; return whether it had none."""
        ...

    def is_complete(self) -> bool:
        """Return whether the store has the mark of `mark_complete`; a wiped or new store has none."""
        ...

    def mark_complete(self) -> None:
        """Mark the store as one that has the intents of all servers."""
        ...

    def lease(self, server_id: str) -> AbstractContextManager[Lease]:
        """Hold the server's lease until the block ends.

        Raises:
            LeaseHeld: another run holds it.
        """
        ...

    def claim(self, keys: Collection[str]) -> AbstractContextManager[frozenset[str]]:
        """Claim the free ones of these keys until the block ends, and yield them without waiting for the others.

        A dead holder's claims expire, as its leases do. A holder that was suspended for too long may have lost them.
        """
        ...

    def now(self) -> float:
        """Return seconds since the epoch by the store's clock, which all processes share."""
        ...

    def next_revision(self) -> int:
        """Return microseconds since the epoch, greater than any earlier revision, also after the store was lost."""
        ...

    def note_migration(self, progress: MigrationProgress | None) -> None:
        """Store the progress of the migration for people to read; None: there is no migration."""
        ...

    def migration(self) -> MigrationProgress | None:
        """Return the last progress, None when there is no migration."""
        ...

    def add_dead_letter(self, reason: str, body: str) -> None:
        """Store a rejected message for people to read; the oldest beyond DEAD_LETTER_LIMIT are deleted."""
        ...

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest rejected messages, newest first."""
        ...

    def remove_dead_letter(self, letter: DeadLetter) -> None:
        """Delete a stored letter; do nothing if it is gone."""
        ...

    def clear_dead_letters(self) -> int:
        """Delete all dead letters, and return their number."""
        ...

    def backlog(self) -> Backlog:
        """Return the backlog as of now; its cost does not grow with the number of servers."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...
