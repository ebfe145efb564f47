"""Wait for requested reconciliations by polling the intents."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from shared.amounts import span
from shared.intents import times
from shared.intents.intent import Intent
from shared.intents.intents import MIN_INTERVAL_S
from shared.settings import Settings

Result = Literal["listed", "stopped", "failed", "waiting"]

Read = Callable[[Sequence[str]], Mapping[str, Intent]]
"""Return the present intents of these servers, by id."""

POLL_S = 0.2
# Time to start a process and to write, in addition to the waits of the settings.
WORK_S = 15.0


class ReconcileResult(BaseModel):
    """The result of a reconciliation that `emitted` requested; `error` explains `failed` and `waiting`."""

    model_config = ConfigDict(frozen=True)

    emitted: Intent
    result: Result
    error: str | None = None

    @property
    def is_good(self) -> bool:
        """Return whether the catalogue now has the requested state."""
        return self.result in ("listed", "stopped")

    @property
    def sentence(self) -> str:
        """Return the outcome as a sentence."""
        server = self.emitted.server_id
        why = f": {self.error.removeprefix(f'{server}: ')}" if self.error else ""
        return f"{server}: {'not reconciled' if self.result == 'waiting' else self.result}{why}"

    def as_object(self) -> dict[str, Any]:
        """Return the event and its result as JSON."""
        return recorded(self.emitted) | {"result": self.result, "error": self.error}


def recorded(intent: Intent) -> dict[str, Any]:
    """Return a recorded event as JSON: the server, its wanted status, and the generation of the event."""
    return {"server_id": intent.server_id, "status": intent.status, "generation": intent.desired}


def patience_s(settings: Settings) -> float:
    """Return the timeout without any result, in seconds: it covers a slow server and one redelivery."""
    return settings.listing_timeout_s + times.REDELIVER_AFTER_S + MIN_INTERVAL_S + WORK_S


def wait_for(
    read: Read,
    emitted: Sequence[Intent],
    patience_s: float,
    stopped: threading.Event,
    install_s: float = 0.0,
) -> Iterator[ReconcileResult]:
    """Yield each result as soon as it exists; after `patience_s` without one, or when stopped, the rest as `waiting`.

    `emitted` are the intents after the events. While a server is being installed, the wait is `install_s` longer.
    """
    waiting = {intent.server_id: intent for intent in emitted}
    quiet_since, limit_s = time.monotonic(), patience_s
    while waiting and not stopped.is_set() and time.monotonic() - quiet_since < limit_s:
        found = read(list(waiting))
        limit_s = patience_s + install_s if any(intent.is_installing for intent in found.values()) else patience_s
        results = [result for server in waiting if (result := _result_of(found.get(server), waiting[server]))]
        for result in results:
            del waiting[result.emitted.server_id]
            quiet_since = time.monotonic()
            yield result
        if waiting:
            stopped.wait(POLL_S)
    missed = f"no reconciliation ended within {span(limit_s)}; is a worker, or `toolscale serve`, running?"
    for server in waiting.values():
        yield ReconcileResult(emitted=server, result="waiting", error=missed)


def _result_of(intent: Intent | None, emitted: Intent) -> ReconcileResult | None:
    """Return the result of the reconciliation, None while it is pending."""
    if intent is None:
        return ReconcileResult(emitted=emitted, result="failed", error="its intent was deleted")
    if intent.committed >= emitted.desired and not intent.last_error:
        return ReconcileResult(emitted=emitted, result="stopped" if intent.status == "stopped" else "listed")
    if _has_failed(intent, emitted) or intent.committed >= emitted.desired:
        return ReconcileResult(emitted=emitted, result="failed", error=intent.last_error)
    return None


def _has_failed(intent: Intent, emitted: Intent) -> bool:
    """Return whether the last reconciliation failed, or the server is parked, and no message is pending.

    If an earlier reconciliation fails, the requested one still has a pending message.
    """
    if intent.message_pending:
        return False
    if intent.parked:  # a retry of a server that was parked before the event may still succeed
        return not emitted.parked or intent.attempts <= emitted.attempts
    return intent.failures > emitted.failures and not intent.attempts
