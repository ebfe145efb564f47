"""What both stores do alike: they differ in how they read, replace and find intents, and in whose clock they follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial

import structlog
from pydantic import ValidationError

from shared.errors import IntentsUnavailable
from shared.events import ServerEvent
from workers.intents import transitions
from workers.intents.store import Intent, MigrationProgress, Recorded
from workers.intents.transitions import RetryPolicy

_log = structlog.get_logger()

Change = Callable[[Intent | None, float], Intent]
"""What an intent becomes; the second argument is the time by the store's clock."""


class StoredIntents(ABC):
    """The life of an intent, on whatever `_update` and `_due` keep it in."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def record(self, event: ServerEvent, *, due_in_s: float) -> Recorded:
        """Write down what the event asks and raise the desired generation; durable on return."""
        had_pending_message = False

        def change(before: Intent | None, now: float) -> Intent:
            nonlocal had_pending_message
            had_pending_message = before is not None and before.message_pending and not before.is_throttled
            return transitions.recorded(before, event, now, now + due_in_s)

        intent = self._update(event.data.server_id, change)
        needs_message = intent.message_pending and not intent.is_throttled
        return Recorded(intent, needs_message=needs_message and not had_pending_message)

    def begin(self, server_id: str) -> Intent | None:
        """Count an attempt and put the next one off; None when no look is asked for."""
        if self.intent(server_id) is None:
            return None
        is_due = False

        def change(before: Intent, now: float) -> Intent:
            nonlocal is_due
            is_due = transitions.is_due(before) and not transitions.is_throttled_at(before, now)
            return transitions.begun(before, now, self._policy)

        intent = self._change(server_id, change)
        return intent if is_due else None

    def commit(self, server_id: str, generation: int) -> Intent:
        """Note that the index reflects this generation; never lowers it."""
        return self._change(server_id, lambda before, now: transitions.committed(before, generation, now, self._policy))

    def fail(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Note that a look at this generation ended in an error; the next one waits longer each time."""
        return self._record_failure(server_id, reason, partial(transitions.failed, generation=generation))

    def retry_later(self, server_id: str) -> Intent:
        """Note that a look ended for a reason that is not the server's; the next one waits longer each time."""
        return self._change(server_id, lambda before, now: transitions.retried_later(before, now, self._policy))

    def park(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Note that the server's looks keep killing their workers; it is looked at once in the longest wait."""
        return self._record_failure(server_id, reason, partial(transitions.parked, generation=generation))

    def stop_retrying(self, server_id: str, generation: int, reason: str = "") -> Intent:
        """Plan no further look until an event after this generation asks for one."""
        return self._record_failure(server_id, reason, partial(transitions.retries_stopped, generation=generation))

    def clear_pending_messages(self) -> None:
        """Note that no message is under way: for a broker in memory, at the start of its process."""
        for intent in self.intents():
            if intent.message_pending:
                self._change(intent.server_id, lambda before, _now: transitions.message_lost(before))

    def insert_if_absent(self, intent: Intent) -> bool:
        """Write down an intent for a server that has none; return whether it had none."""
        was_missing = False

        def change(before: Intent | None, _now: float) -> Intent:
            nonlocal was_missing
            was_missing = before is None
            return before or intent

        self._update(intent.server_id, change)
        return was_missing

    def note_migration(self, progress: MigrationProgress | None) -> None:
        """Keep how far the migration is; None: there is none."""
        self._put_migration(None if progress is None else progress.model_dump_json())

    def migration(self) -> MigrationProgress | None:
        """Return what was noted last, None when there is no migration or the note cannot be read."""
        stored = self._get_migration()
        try:
            return None if stored is None else MigrationProgress.model_validate_json(stored)
        except ValidationError:
            return None  # of another release; the next one is not

    def claim_due(self, limit: int) -> list[str]:
        """Return servers whose time for a look has come, and plan the one after."""
        return [server_id for server_id in self._due(limit) if self._claim_readable(server_id)]

    def _claim_readable(self, server_id: str) -> bool:
        """Return whether this sweep asks for the server's look; an intent that cannot be read is passed over."""
        if self.intent(server_id) is not None:
            return self._claim(server_id)
        self._drop_due(server_id)
        return False

    def _claim(self, server_id: str) -> bool:
        """Return whether this sweep is the one that asks for the server's look."""
        claimed = False

        def change(before: Intent, now: float) -> Intent:
            nonlocal claimed
            claimed = before.due_at is not None and before.due_at <= now
            return transitions.claimed(before, now, self._policy) if claimed else before

        self._change(server_id, change)
        return claimed

    def _record_failure(self, server_id: str, reason: str, change: Callable[..., Intent]) -> Intent:
        """Make a change after a look that gave no list, and keep the reason."""

        def with_reason(before: Intent, now: float) -> Intent:
            after = change(before, now=now, policy=self._policy)
            return after.model_copy(update={"last_error": reason or before.last_error})

        return self._change(server_id, with_reason)

    def _change(self, server_id: str, change: Callable[[Intent, float], Intent]) -> Intent:
        return self._update(server_id, lambda before, now: change(_known(before, server_id), now))

    @abstractmethod
    def intent(self, server_id: str) -> Intent | None:
        """Return a server's intent, or None when it was never announced."""

    @abstractmethod
    def intents(self) -> Iterator[Intent]:
        """Return the intents of all announced servers."""

    @abstractmethod
    def _update(self, server_id: str, change: Change) -> Intent:
        """Replace the intent by what `change` makes of it, atomically; `change` may be called more than once."""

    @abstractmethod
    def _put_migration(self, note: str | None) -> None:
        """Keep this text in place of the last one, or none."""

    @abstractmethod
    def _get_migration(self) -> str | None:
        """Return the text that is kept."""

    @abstractmethod
    def _drop_due(self, server_id: str) -> None:
        """Let no sweep find the server until an event speaks of it."""

    @abstractmethod
    def _due(self, limit: int) -> list[str]:
        """Return servers that are due, the longest waiting first."""


def readable(server_id: str, stored: str) -> Intent | None:
    """Return the intent in this JSON, or None, logged, when it cannot be read: as if it had never been announced."""
    try:
        return Intent.model_validate_json(stored)
    except ValidationError as error:
        _log.error("intent_unreadable", server=server_id, reason=str(error))
        return None


def _known(intent: Intent | None, server_id: str) -> Intent:
    if intent is None:
        raise IntentsUnavailable(f"{server_id}: its intent is gone")
    return intent
