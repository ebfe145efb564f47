"""The transitions of an intent, shared by both stores; a store reads, replaces and finds intents, and has a clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog
from pydantic import ValidationError
from typing_extensions import override

from shared.errors import IntentsUnavailable
from shared.events import ServerEvent
from shared.observability.unreadable import count_unreadable
from workers.intents import transitions
from workers.intents.store import REASON_CHARACTERS, Changes, Intent, IntentStore, MigrationProgress, Recorded
from workers.intents.transitions import RetryPolicy

_log = structlog.get_logger()

Change = Callable[[Intent | None, float], Intent]
"""Returns the changed intent; the second argument is the time by the store's clock."""

Failure = Callable[..., Intent]
"""A transition of an intent after a failed reconciliation; takes `now` and `policy` as keywords."""


class StoredIntents(IntentStore, ABC):
    """The transitions of an IntentStore, for any storage behind `_update` and `_due`."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    @override
    def record(self, event: ServerEvent, *, due_in_s: float) -> Recorded:
        before, after = self._update(
            event.data.server_id, lambda intent, now: transitions.recorded(intent, event, now, now + due_in_s)
        )
        return Recorded(after, needs_message=_has_message(after) and not _has_message(before))

    @override
    def changes(self, since: str = "") -> Changes:
        position, changed = self._changed(since)
        if changed is None:
            return Changes(position, {intent.server_id: intent for intent in self.intents()}, is_complete=True)
        return Changes(position, dict(self._read_intents(changed)), is_complete=False)

    @override
    def begin(self, server_id: str) -> Intent | None:
        if self.intent(server_id) is None:
            return None
        before, after = self._change(server_id, partial(transitions.begun, policy=self._policy))
        return after if after.attempts > before.attempts else None

    @override
    def commit(
        self, server_id: str, generation: int, catalogue_id: str | None = None, unaccepted: int | None = None
    ) -> Intent:
        listed = {"catalogue_id": catalogue_id, "unaccepted": unaccepted}
        change = partial(transitions.committed, generation=generation, listed=listed, policy=self._policy)
        return self._change(server_id, lambda intent, now: change(intent, now=now))[1]

    @override
    def fail(self, server_id: str, generation: int, reason: str = "") -> Intent:
        return self._record_failure(server_id, reason, partial(transitions.failed, generation=generation))

    @override
    def retry_later(self, server_id: str) -> Intent:
        return self._change(server_id, partial(transitions.retried_later, policy=self._policy))[1]

    @override
    def park(self, server_id: str, generation: int, reason: str = "") -> Intent:
        return self._record_failure(server_id, reason, partial(transitions.parked, generation=generation))

    @override
    def stop_retrying(self, server_id: str, generation: int, reason: str = "") -> Intent:
        return self._record_failure(server_id, reason, partial(transitions.retries_stopped, generation=generation))

    @override
    def clear_pending_messages(self) -> None:
        for intent in self.intents():
            if intent.message_pending:
                self._change(intent.server_id, lambda before, _now: transitions.message_lost(before))

    @override
    def insert_if_absent(self, intent: Intent) -> bool:
        before, _ = self._update(intent.server_id, lambda before, _now: before or intent)
        return before is None

    @override
    def note_migration(self, progress: MigrationProgress | None) -> None:
        self._put_migration(None if progress is None else progress.model_dump_json())

    @override
    def migration(self) -> MigrationProgress | None:
        stored = self._get_migration()
        try:
            return None if stored is None else MigrationProgress.model_validate_json(stored, extra="ignore")
        except ValidationError:
            return None  # another release wrote it; the next note replaces it

    @override
    def claim_due(self, limit: int) -> list[str]:
        return [server_id for server_id in self._due(limit) if self._claim_readable(server_id)]

    def _claim_readable(self, server_id: str) -> bool:
        """Claim the server for this sweep; return False for an invalid intent, which later sweeps skip."""
        if self.intent(server_id) is not None:
            return self._claim(server_id)
        self._drop_due(server_id)
        return False

    def _claim(self, server_id: str) -> bool:
        """Return whether this sweep is the first to claim the server."""

        def claimed_if_due(intent: Intent, now: float) -> Intent:
            is_due = intent.due_at is not None and intent.due_at <= now
            return transitions.claimed(intent, now, self._policy) if is_due else intent

        before, after = self._change(server_id, claimed_if_due)
        return after != before

    def _record_failure(self, server_id: str, reason: str, failure: Failure) -> Intent:
        """Apply the transition of a failed reconciliation, and store the reason."""

        def with_reason(before: Intent, now: float) -> Intent:
            after = failure(before, now=now, policy=self._policy)
            return after.model_copy(update={"last_error": reason[:REASON_CHARACTERS] or before.last_error})

        return self._change(server_id, with_reason)[1]

    def _change(self, server_id: str, change: Callable[[Intent, float], Intent]) -> tuple[Intent, Intent]:
        """Change an existing intent; return it before and after."""
        before, after = self._update(server_id, lambda intent, now: change(_existing(intent, server_id), now))
        return _existing(before, server_id), after

    @abstractmethod
    def _update(self, server_id: str, change: Change) -> tuple[Intent | None, Intent]:
        """Replace the intent atomically by the result of `change`; return it before and after.

        A store may call `change` more than once.
        """

    @abstractmethod
    def _changed(self, since: str) -> tuple[str, list[str] | None]:
        """Return the present position, and the servers changed after `since`; None if the store does not have them."""

    @abstractmethod
    def _read_intents(self, server_ids: Sequence[str]) -> Iterator[tuple[str, Intent | None]]:
        """Yield each server and its intent; None for an invalid one."""

    @abstractmethod
    def _put_migration(self, note: str | None) -> None:
        """Replace the stored note; None removes it."""

    @abstractmethod
    def _get_migration(self) -> str | None:
        """Return the stored note."""

    @abstractmethod
    def _drop_due(self, server_id: str) -> None:
        """Hide the server from sweeps until its next event."""

    @abstractmethod
    def _due(self, limit: int) -> list[str]:
        """Return servers that are due, the longest waiting first."""


def readable(server_id: str, stored: str) -> Intent | None:
    """Return the intent in this JSON without a newer release's fields; log an invalid one and return None."""
    try:
        return Intent.model_validate_json(stored, extra="ignore")
    except ValidationError as error:
        count_unreadable("intent")
        _log.error("intent_unreadable", server=server_id, reason=str(error))
        return None


def _has_message(intent: Intent | None) -> bool:
    return intent is not None and intent.message_pending and not intent.is_throttled


def _existing(intent: Intent | None, server_id: str) -> Intent:
    if intent is None:
        raise IntentsUnavailable(f"{server_id}: its intent is gone")
    return intent
