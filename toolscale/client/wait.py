"""Wait for the looks that were asked for, as the intents tell of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from shared.settings import Settings
from toolscale.client.emit import EmitResult
from workers.intents import MIN_INTERVAL_S, open_intents
from workers.intents.store import Intent, IntentStore

Result = Literal["listed", "stopped", "failed", "waiting"]

POLL_S = 0.2
# What starting and writing take, beside the waits that the settings name.
WORK_S = 15.0


class ReconcileResult(BaseModel):
    """How a look that was asked for ended; `error` says why it is neither listed nor stopped."""

    model_config = ConfigDict(frozen=True)

    emitted: EmitResult
    result: Result
    error: str | None = None

    @property
    def is_good(self) -> bool:
        """Return whether the catalogue is as was asked."""
        return self.result in ("listed", "stopped")

    @property
    def sentence(self) -> str:
        """Return the outcome for people."""
        server = self.emitted.server_id
        why = f": {self.error.removeprefix(f'{server}: ')}" if self.error else ""
        return f"{server}: {'not looked at' if self.result == 'waiting' else self.result}{why}"

    def as_object(self) -> dict[str, Any]:
        """Return what was asked, with how it ended, as JSON."""
        return self.emitted.model_dump(mode="json") | {"result": self.result, "error": self.error}


def patience_s(settings: Settings) -> float:
    """Return for how long nothing may end before waiting is of no use: a slow server's time, twice tried."""
    return settings.listing_timeout_s + settings.redeliver_after_s + MIN_INTERVAL_S + WORK_S


def wait(settings: Settings, emitted: Sequence[EmitResult]) -> Iterator[ReconcileResult]:
    """Yield how each look ended, as soon as it has; those of which nothing is heard come last.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        yield from wait_for(intents, emitted, patience_s(settings), threading.Event())


def wait_for(
    intents: IntentStore, emitted: Sequence[EmitResult], patience_s: float, stopped: threading.Event
) -> Iterator[ReconcileResult]:
    """Yield how each look ended; once none has for `patience_s` seconds, or when stopped, the others as waiting."""
    waiting = {intent.server_id: intent for intent in emitted}
    quiet_since = time.monotonic()
    while waiting and not stopped.is_set() and time.monotonic() - quiet_since < patience_s:
        results = [
            result for result in (_result_of(intents.intent(server), waiting[server]) for server in waiting) if result
        ]
        for result in results:
            del waiting[result.emitted.server_id]
            quiet_since = time.monotonic()
            yield result
        if waiting:
            stopped.wait(POLL_S)
    missed = f"no look ended within {patience_s:.0f} s; is a worker, or `toolscale serve`, running?"
    for unheard_of in waiting.values():
        yield ReconcileResult(emitted=unheard_of, result="waiting", error=missed)


def _result_of(intent: Intent | None, emitted: EmitResult) -> ReconcileResult | None:
    """Return how the look ended, None while it has not."""
    if intent is None:
        return ReconcileResult(emitted=emitted, result="failed", error="nothing is known of it any more")
    if intent.committed >= emitted.generation and not intent.last_error:
        return ReconcileResult(emitted=emitted, result="stopped" if intent.status == "stopped" else "listed")
    if _has_failed(intent, emitted) or intent.committed >= emitted.generation:
        return ReconcileResult(emitted=emitted, result="failed", error=intent.last_error)
    return None


def _has_failed(intent: Intent, emitted: EmitResult) -> bool:
    """Return whether a look failed, or none comes, and none is awaited or under way.

    A look from before that fails meanwhile leaves the one that was asked for to come.
    """
    if intent.message_pending:
        return False
    if intent.parked:  # a look that has begun at one that was parked before may yet end well
        return not emitted.parked or intent.attempts <= emitted.attempts
    return intent.failures > emitted.failures and not intent.attempts
