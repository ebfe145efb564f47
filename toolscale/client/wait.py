"""Wait for requested reconciliations by polling the intents."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from shared.intents import times
from shared.intents.intent import Intent
from shared.intents.intents import MIN_INTERVAL_S, Intents, open_intents
from shared.settings import Settings
from shared.upstream.target import STDIO_START_TIMEOUT_S
from toolscale.client.emit import EmitResult

Result = Literal["listed", "stopped", "failed", "waiting"]

POLL_S = 0.2
# Time to start a process and to write, in addition to the waits of the settings.
WORK_S = 15.0


class ReconcileResult(BaseModel):
    """The result of a requested reconciliation; `error` explains `failed` and `waiting`."""

    model_config = ConfigDict(frozen=True)

    emitted: EmitResult
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
        return self.emitted.model_dump(mode="json") | {"result": self.result, "error": self.error}


def patience_s(settings: Settings) -> float:
    """Return the timeout without any result, in seconds: it covers a slow server and one redelivery."""
    return settings.listing_timeout_s + times.REDELIVER_AFTER_S + MIN_INTERVAL_S + WORK_S


def wait(settings: Settings, emitted: Sequence[EmitResult]) -> Iterator[ReconcileResult]:
    """Yield each result as soon as it exists; servers without a result come last, as `waiting`.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        yield from wait_for(intents, emitted, patience_s(settings), threading.Event(), install_s=STDIO_START_TIMEOUT_S)


def wait_for(
    intents: Intents,
    emitted: Sequence[EmitResult],
    patience_s: float,
    stopped: threading.Event,
    install_s: float = 0.0,
) -> Iterator[ReconcileResult]:
    """Yield each result; after `patience_s` seconds without one, or when stopped, the rest as `waiting`.

    While a server is being installed, the wait is `install_s` longer.
    """
    waiting = {intent.server_id: intent for intent in emitted}
    quiet_since, limit_s = time.monotonic(), patience_s
    while waiting and not stopped.is_set() and time.monotonic() - quiet_since < limit_s:
        found = {server: intents.intent(server) for server in waiting}
        is_installing = any(intent is not None and intent.is_installing for intent in found.values())
        limit_s = patience_s + install_s if is_installing else patience_s
        results = [result for server in waiting if (result := _result_of(found[server], waiting[server]))]
        for result in results:
            del waiting[result.emitted.server_id]
            quiet_since = time.monotonic()
            yield result
        if waiting:
            stopped.wait(POLL_S)
    missed = f"no reconciliation ended within {limit_s:.0f} s; is a worker, or `toolscale serve`, running?"
    for server in waiting.values():
        yield ReconcileResult(emitted=server, result="waiting", error=missed)


def _result_of(intent: Intent | None, emitted: EmitResult) -> ReconcileResult | None:
    """Return the result of the reconciliation, None while it is pending."""
    if intent is None:
        return ReconcileResult(emitted=emitted, result="failed", error="its intent was deleted")
    if intent.committed >= emitted.generation and not intent.last_error:
        return ReconcileResult(emitted=emitted, result="stopped" if intent.status == "stopped" else "listed")
    if _has_failed(intent, emitted) or intent.committed >= emitted.generation:
        return ReconcileResult(emitted=emitted, result="failed", error=intent.last_error)
    return None


def _has_failed(intent: Intent, emitted: EmitResult) -> bool:
    """Return whether the last reconciliation failed, or the server is parked, and no message is pending.

    If an earlier reconciliation fails, the requested one still has a pending message.
    """
    if intent.message_pending:
        return False
    if intent.parked:  # a retry of a server that was parked before the event may still succeed
        return not emitted.parked or intent.attempts <= emitted.attempts
    return intent.failures > emitted.failures and not intent.attempts
