"""The states of a server whose reconciliations fail; other servers are not affected.

stale         its last tools are still found, and marked
quarantined   its tools are hidden; retries continue with growing pauses until a listing succeeds
parked        quarantined because its reconciliations killed workers; it is retried once per longest pause
stopped       no more retries until it is announced again
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from shared.catalog import ServerRecord, Status
from shared.errors import ServerError
from shared.index.tools import ToolIndex
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from workers.indexing.records import invalidate_record, known_record

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Failed reconciliations until a server is quarantined, and seconds without a listing until it is stopped."""

    quarantine_after: int = 5
    give_up_after_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class _FailureOutcome:
    """The reason of a failed reconciliation, and the state of the server after it."""

    reason: str
    status: Status
    failures: int
    next_reconcile_at: float | None


def record_failure(
    error: ServerError, intent: Intent, index: ToolIndex, intents: Intents, policy: FailurePolicy
) -> None:
    """Record a failed listing: mark the server stale, quarantine it after several failures, stop it after a day."""
    before = known_record(intent, index, intents.next_revision)
    if _silent_for_s(before, intent, intents.now()) >= policy.give_up_after_s:
        outcome = _FailureOutcome(str(error), "stopped", intent.failures + 1, None)
        _write(outcome, before, intent, index, intents)
        intents.stop_retrying(intent.server_id, intent.desired, str(error))  # last: it ends the retries
    else:
        after = intents.fail(intent.server_id, intent.desired, str(error))
        status: Status = "quarantined" if after.failures >= policy.quarantine_after else before.status
        outcome = _FailureOutcome(str(error), status, after.failures, after.due_at)
        _write(outcome, before, intent, index, intents)
    _log.warning(
        "server_listing_failed",
        server=intent.server_id,
        error=error.kind,
        reason=error.reason,
        status=outcome.status,
        failures=outcome.failures,
    )


def park(intent: Intent, index: ToolIndex, intents: Intents, attempts: int) -> None:
    """Quarantine a server whose last `attempts` reconciliations killed their workers, and retry it rarely."""
    reason = f"{intent.server_id}: {attempts} reconciliations in a row did not end; parked, and retried rarely"
    outcome = _FailureOutcome(reason, "quarantined", attempts, None)
    _write(outcome, known_record(intent, index, intents.next_revision), intent, index, intents)
    intents.park(intent.server_id, intent.desired, reason)  # last: until then, the sweep retries it
    _log.error("server_parked", server=intent.server_id, attempts=attempts)


def _write(outcome: _FailureOutcome, before: ServerRecord, intent: Intent, index: ToolIndex, intents: Intents) -> None:
    groups = intent.announcement.groups
    # compared with the tools, not the record: after a model change, tools may have an older status
    states = index.tool_states(intent.server_id).values()
    if any(state.status != outcome.status or state.groups != groups for state in states):
        invalidate_record(before, index)
        index.set_status_and_groups(intent.server_id, status=outcome.status, groups=groups)
    changes = {
        "endpoint": intent.announcement.endpoint,
        "status": outcome.status,
        "groups": groups,
        "source": intent.source,
        "generation": intent.desired,
        "revision": intents.next_revision(),
        "stale_since": before.stale_since or intents.now(),
        "last_error": outcome.reason,
        "failures": outcome.failures,
        "next_reconcile_at": outcome.next_reconcile_at,
    }
    index.put_server(before.model_copy(update=changes))


def _silent_for_s(record: ServerRecord, intent: Intent, now: float) -> float:
    """Return the seconds without a listing, from the last announcement at the earliest, by the store's clock."""
    return now - max(record.stale_since, intent.announced_at) if record.stale_since else 0.0
