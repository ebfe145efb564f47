"""The intents of all servers, and their definitions, leases, revisions and dead letters, over any storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog
from pydantic import ValidationError

from shared.errors import EventInvalid, IntentsUnavailable, LeaseHeld
from shared.events import ServerChanged, ServerEvent, ServerRef, ServerUp
from shared.intents import times, transitions
from shared.intents.definitions import Definitions, DefinitionsChange, readable_definitions
from shared.intents.intent import (
    DEAD_LETTER_LIMIT,
    REASON_CHARACTERS,
    Backlog,
    Changes,
    DeadLetter,
    Intent,
    MigrationProgress,
    Recorded,
    readable_intent,
)
from shared.intents.storage import Lease, Replacement, Storage
from shared.intents.transitions import RetryPolicy

if TYPE_CHECKING:
    from shared.settings import Settings

# A server that reports changes all the time costs at most six reconciliations a minute.
MIN_INTERVAL_S = 10.0

LEASE_SOURCE = "toolscale/lease"
"""The source of the event that requests a reconciliation after a lost lease."""

_READ_AT_ONCE = 500
_LOCKS = 64

After = TypeVar("After", bound=Intent | None)

Failure = Callable[..., Intent]
"""A transition of an intent after a failed reconciliation; takes `now` and `policy` as keywords."""


class Intents:
    """The intents of all servers in a storage. Safe to call from several threads and processes.

    Every method raises IntentsUnavailable when the storage does not answer.
    """

    def __init__(self, storage: Storage, policy: RetryPolicy, dead_letter_limit: int = DEAD_LETTER_LIMIT) -> None:
        self.storage = storage
        self.policy = policy
        self._dead_letter_limit = dead_letter_limit
        self._updating = tuple(threading.Lock() for _ in range(_LOCKS))

    def record(self, event: ServerEvent, *, due_in_s: float) -> Recorded:
        """Store the effect of the event and raise the desired generation; durable on return.

        The sweep waits `due_in_s` seconds, which leaves the message time to arrive.

        Raises:
            EventInvalid: the event refers to a server that was never announced, or that belongs to another sender.
        """
        (result,) = self.record_all([event], due_in_s=due_in_s)
        if isinstance(result, EventInvalid):
            raise result
        return result

    def record_all(self, events: Sequence[ServerEvent], *, due_in_s: float) -> list[Recorded | EventInvalid]:
        """Record these events in their order, all durable on return, and return the result of each.

        Costs two round trips however many events there are, and two more where another process wrote meanwhile.
        """
        results = dict[int, Recorded | EventInvalid]()
        while len(results) < len(events):
            open_events = {number: event for number, event in enumerate(events) if number not in results}
            server_ids = list({event.data.server_id: None for event in open_events.values()})
            now, stored = self.storage.get("intent", server_ids)
            before = {each: self._readable(each, text, now) for each, text in zip(server_ids, stored, strict=True)}
            after, outcomes = dict(before), dict[int, Recorded | EventInvalid]()
            for number, event in open_events.items():
                server_id = event.data.server_id
                after[server_id], outcomes[number] = _outcome(after[server_id], event, now, due_in_s)
            written = [
                _replacement(text, intent)
                for (server_id, intent), text in zip(after.items(), stored, strict=True)
                if intent is not None and intent != before[server_id]
            ]
            replaced = self.storage.replace("intent", written) if written else []
            lost = {each.server_id for each, is_replaced in zip(written, replaced, strict=True) if not is_replaced}
            results |= {
                number: outcome for number, outcome in outcomes.items() if events[number].data.server_id not in lost
            }
        return [results[number] for number in range(len(events))]

    def request(self, server_id: str, source: str) -> None:
        """Request a reconciliation, which the next sweep sends.

        Raises:
            EventInvalid: the server was never announced.
        """
        self.record(ServerChanged(source=source, data=ServerRef(server_id=server_id)), due_in_s=0)

    def intent(self, server_id: str) -> Intent | None:
        """Return a server's intent, or None when there is no valid one."""
        now, (stored,) = self.storage.get("intent", [server_id])
        return self._readable(server_id, stored, now)

    def existing(self, server_ids: Sequence[str]) -> dict[str, Intent]:
        """Return the valid intents of these servers, by id."""
        return {server_id: intent for server_id, intent in self._read(server_ids) if intent}

    def intents(self) -> Iterator[Intent]:
        """Return the valid intents of all announced servers."""
        return (intent for _, intent in self._read(self.storage.server_ids()) if intent)

    def changes(self, since: str = "") -> Changes:
        """Return the intents written after the position `since`; all intents without it, or after a lost store.

        An earlier release writes intents in Redis without a change.
        """
        position, changed = self.storage.changed(since)
        if changed is None:
            return Changes(position, {intent.server_id: intent for intent in self.intents()}, is_complete=True)
        return Changes(position, dict(self._read(changed)), is_complete=False)

    def begin(self, server_id: str) -> Intent | None:
        """Return the intent at the beginning of a reconciliation, or None when none is requested.

        Counts an attempt and postpones the next one first, so that a reconciliation that kills its worker backs off.
        A suspect is reconciled only after `claim_due`: a redelivered message or a repeated announcement does not
        bring it back to a worker that has just started.
        """

        def begun(intent: Intent | None, now: float) -> Intent | None:
            return transitions.begun(intent, now, self.policy) if intent else None

        before, after = self._update(server_id, begun)
        return after if before and after and after.attempts > before.attempts else None

    def commit(
        self, server_id: str, generation: int, catalogue_id: str | None = None, unaccepted: int | None = None
    ) -> Intent:
        """Raise the committed generation to this one; never lowers it. Returns the intent after that.

        Replaces `catalogue_id` and `unaccepted` unless they are None.
        """
        listed = {"catalogue_id": catalogue_id, "unaccepted": unaccepted}
        change = partial(transitions.committed, generation=generation, listed=listed, policy=self.policy)
        return self._change(server_id, lambda intent, now: change(intent, now=now))[1]

    def fail(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Record that the reconciliation of this generation ended in an error. Returns the intent after that.

        The wait before the next one doubles each time. A newer event cancels it.
        """
        return self._record_failure(server_id, reason, partial(transitions.failed, generation=generation))

    def retry_later(self, server_id: str) -> Intent:
        """Record that a reconciliation ended for an internal reason, which does not count as an attempt.

        The wait before the next one doubles each time, until a commit.
        """
        return self._change(server_id, partial(transitions.retried_later, policy=self.policy))[1]

    def park(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Record that reconciliations of the server repeatedly killed their workers. Returns the intent after that.

        A parked server is retried once per longest wait, until a reconciliation ends.
        A server that kills workers costs one worker each time; an innocent server returns after the first retry.
        A `changed` event triggers one immediate reconciliation; later ones wait until it ends.
        A server that stopped, or whose announcement changed, starts over.
        """
        return self._record_failure(server_id, reason, partial(transitions.parked, generation=generation))

    def stop_retrying(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Schedule no reconciliation until an event after this generation. Returns the intent after that."""
        return self._record_failure(server_id, reason, partial(transitions.retries_stopped, generation=generation))

    def clear_pending_messages(self) -> None:
        """Mark all messages as lost: for a broker in memory, at the start of its process."""
        for intent in self.intents():
            if intent.message_pending:
                self._change(intent.server_id, lambda before, _now: transitions.message_lost(before))

    def claim_due(self, limit: int) -> list[str]:
        """Return at most `limit` servers that are due, and schedule the reconciliation after.

        A server is due when it lags, or a resync interval after its last reconciliation.
        Two concurrent sweeps never get the same server.
        """
        return [
            server_id
            for server_id in self.storage.due(limit, self.policy.longest_wait_s)
            if self._is_claimed(server_id)
        ]

    def insert_if_absent(self, intent: Intent) -> bool:
        """Store an intent for a server that has none; return whether it had none."""
        before, _ = self._update(intent.server_id, lambda before, _now: before or intent)
        return before is None

    def is_complete(self) -> bool:
        """Return whether the store has the mark of `mark_complete`; a wiped or new store has none."""
        return self.storage.note("complete") is not None

    def mark_complete(self) -> None:
        """Mark the store as one that has the intents of all servers."""
        self.storage.set_note("complete", str(int(time.time())))

    def definitions(self, server_id: str) -> Definitions | None:
        """Return the accepted and the changed definitions of a server, or None when there is no valid document."""
        _, (stored,) = self.storage.get("definitions", [server_id])
        return readable_definitions(server_id, stored)

    def update_definitions(self, server_id: str, change: DefinitionsChange) -> tuple[Definitions | None, Definitions]:
        """Replace the document atomically by the result of `change`; return it before and after.

        `change` may be called more than once. An equal document is not written.
        """
        while True:
            _, (stored,) = self.storage.get("definitions", [server_id])
            before = readable_definitions(server_id, stored)
            after = change(before)
            replacement = Replacement(server_id, stored, after.as_json())
            if after == before or self.storage.replace("definitions", [replacement])[0]:
                return before, after

    @contextmanager
    def held(self, server_id: str) -> Generator[None]:
        """Hold the server's lease for this run; after a lost lease, the next sweep requests another reconciliation.

        The lease is checked once, at the end. A process that was suspended may have written late, and perhaps last;
        the requested reconciliation repairs that.

        Raises:
            LeaseHeld: another run holds the lease, or this run lost it.
        """
        with self.lease(server_id) as lease:
            try:
                try:
                    yield
                except Exception:
                    lease.assert_held()  # the run wrote before it failed
                    raise
                lease.assert_held()
            except LeaseHeld:
                with suppress(EventInvalid):  # the server has no intent any more
                    self.request(server_id, LEASE_SOURCE)
                structlog.get_logger().warning("lease_lost", server=server_id)
                raise

    def lease(self, name: str) -> AbstractContextManager[Lease]:
        """Hold the lease of this name until the block ends.

        Raises:
            LeaseHeld: another run holds it.
        """
        return self.storage.lease(name)

    def now(self) -> float:
        """Return seconds since the epoch by the store's clock, which all processes share."""
        return self.storage.now()

    def next_revision(self) -> int:
        """Return microseconds since the epoch, greater than any earlier revision, also after the store was lost."""
        return self.storage.next_revision()

    def note_migration(self, progress: MigrationProgress | None) -> None:
        """Store the progress of the migration for people to read; None: there is no migration."""
        self.storage.set_note("migration", None if progress is None else progress.model_dump_json())

    def migration(self) -> MigrationProgress | None:
        """Return the last progress, None when there is no migration."""
        stored = self.storage.note("migration")
        try:
            return None if stored is None else MigrationProgress.model_validate_json(stored, extra="ignore")
        except ValidationError:
            return None  # another release wrote it; the next note replaces it

    def add_dead_letter(self, reason: str, body: str) -> None:
        """Store a rejected message for people to read; the oldest beyond the limit are deleted."""
        self.add_dead_letters([(reason, body)])

    def add_dead_letters(self, rejected: Sequence[tuple[str, str]]) -> None:
        """Store rejected messages, each with the reason and the body, in one write; see `add_dead_letter`."""
        now, latest = time.time(), rejected[-self._dead_letter_limit :]
        self.storage.add_letters([DeadLetter.of(now, *each) for each in latest], self._dead_letter_limit)

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest rejected messages, newest first."""
        return self.storage.letters(limit)

    def backlog(self) -> Backlog:
        """Return the backlog as of now; its cost does not grow with the number of servers."""
        return self.storage.backlog(self.policy.longest_wait_s)

    def close(self) -> None:
        """Release the storage."""
        self.storage.close()

    def _is_claimed(self, server_id: str) -> bool:
        """Return whether this sweep is the first to claim a due server; an invalid intent is not due any more."""

        def claimed_if_due(intent: Intent, now: float) -> Intent:
            is_due = intent.due_at is not None and intent.due_at <= now
            return transitions.claimed(intent, now, self.policy) if is_due else intent

        _, (stored,) = self.storage.get("intent", [server_id])
        if readable_intent(server_id, stored) is None:  # hidden from sweeps until its next event
            self.storage.replace("intent", [Replacement(server_id, stored, stored)])
            return False
        before, after = self._change(server_id, claimed_if_due)
        return after != before

    def _read(self, server_ids: Sequence[str]) -> Iterator[tuple[str, Intent | None]]:
        """Yield each server and its intent; None for an invalid one."""
        for start in range(0, len(server_ids), _READ_AT_ONCE):
            batch = server_ids[start : start + _READ_AT_ONCE]
            now, stored = self.storage.get("intent", batch)
            for server_id, text in zip(batch, stored, strict=True):
                yield server_id, self._readable(server_id, text, now)

    def _readable(self, server_id: str, stored: str | None, now: float) -> Intent | None:
        """Return the valid intent in this text; a clock that went back postpones nothing beyond the policy."""
        intent = readable_intent(server_id, stored)
        return transitions.within_policy(intent, now, self.policy) if intent else None

    def _record_failure(self, server_id: str, reason: str, failure: Failure) -> Intent:
        """Apply the transition of a failed reconciliation, and store the reason."""

        def with_reason(before: Intent, now: float) -> Intent:
            after = failure(before, now=now, policy=self.policy)
            return after.model_copy(update={"last_error": reason[:REASON_CHARACTERS] or before.last_error})

        return self._change(server_id, with_reason)[1]

    def _change(self, server_id: str, change: Callable[[Intent, float], Intent]) -> tuple[Intent, Intent]:
        """Change an existing intent; return it before and after."""
        before, after = self._update(server_id, lambda intent, now: change(_existing(intent, server_id), now))
        return _existing(before, server_id), after

    def _update(self, server_id: str, change: Callable[[Intent | None, float], After]) -> tuple[Intent | None, After]:
        """Replace an intent by the result of `change`, which may be called repeatedly; return it before and after.

        The second argument of `change` is the time by the store's clock. Without an intent after it, nothing changes.
        """
        # the lock serialises the threads of this process; the loop repeats after a write of another process
        with self._updating[hash(server_id) % _LOCKS]:
            while True:
                now, (stored,) = self.storage.get("intent", [server_id])
                before = self._readable(server_id, stored, now)
                after = change(before, now)
                if after is None or after == before or self.storage.replace("intent", [_replacement(stored, after)])[0]:
                    return before, after


def open_intents(settings: Settings) -> Intents:
    """Open the intents: in Redis if REDIS_URL is set, else in a file in the data directory."""
    policy = RetryPolicy(
        times.REDELIVER_AFTER_S,
        times.RETRY_MAX_S,
        resync_s=settings.resync_interval_s,
        stdio_resync_s=settings.stdio_resync_interval_s,
        min_interval_s=MIN_INTERVAL_S,
    )
    if settings.redis_url:
        from shared.intents.redis import RedisStorage  # noqa: PLC0415  # 0.1 s to import, as in `connect`
        from shared.service.redis import connect  # noqa: PLC0415

        return Intents(RedisStorage(connect(settings.redis_url), times.LEASE_S), policy)
    from shared.intents.sqlite import SqliteStorage  # noqa: PLC0415

    return Intents(SqliteStorage(settings.data_dir / "intents.sqlite3"), policy)


def _outcome(
    before: Intent | None, event: ServerEvent, now: float, due_in_s: float
) -> tuple[Intent | None, Recorded | EventInvalid]:
    """Return the intent after an event, and the result; the owner's intent has a note of a refused announcement."""
    try:
        after = transitions.recorded(before, event, now, now + due_in_s)
    except EventInvalid as error:
        return transitions.refused(before, event) if before and isinstance(event, ServerUp) else before, error
    return after, Recorded(after, needs_message=_has_message(after) and not _has_message(before))


def _replacement(stored: str | None, after: Intent) -> Replacement:
    return Replacement(after.server_id, stored, after.model_dump_json(), after.due_at)


def _has_message(intent: Intent | None) -> bool:
    return intent is not None and intent.message_pending and not intent.is_throttled


def _existing(intent: Intent | None, server_id: str) -> Intent:
    if intent is None:
        raise IntentsUnavailable(f"{server_id}: its intent is gone")
    return intent
