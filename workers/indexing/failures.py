"""What becomes of a server whose looks fail: stale, then quarantined, then stopped; the others never notice.

stale         its last good tools are still found, and marked
quarantined   they are hidden; looks go on, ever more seldom, and the first good list brings them back
parked        the same for one whose looks kill their workers: it is tried once in the longest wait
stopped       no more looks until it is announced again
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from shared.catalog import ServerRecord, Status
from shared.errors import ServerError
from workers.dependencies import Dependencies
from workers.indexing.records import invalidate_record, known_record
from workers.intents.store import Intent, Lease

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FailureOutcome:
    """A look without a list: why, and what the server is from now on."""

    reason: str
    status: Status
    failures: int
    next_reconcile_at: float | None


def record_failure(error: ServerError, intent: Intent, lease: Lease, deps: Dependencies) -> None:
    """Note a failed look: mark the server stale, hide it after too many, stop it after too long.

    Raises:
        LeaseHeld: another run may have looked meanwhile; nothing more is written.
    """
    lease.assert_held()
    before = known_record(intent, deps)
    if _silent_for_s(before, intent, deps) >= deps.failure_policy.give_up_after_s:
        outcome = FailureOutcome(str(error), "stopped", intent.failures + 1, None)
        _write(outcome, before, intent, lease, deps)
        lease.assert_held()
        deps.intents.stop_retrying(intent.server_id, intent.desired, str(error))  # last: then nobody comes back
    else:
        after = deps.intents.fail(intent.server_id, intent.desired, str(error))
        outcome = FailureOutcome(str(error), _status(before, after, deps), after.failures, after.due_at)
        _write(outcome, before, intent, lease, deps)
        lease.assert_held()  # or what was written may have come after another run's
    _log.warning(
        "server_listing_failed",
        server=intent.server_id,
        error=error.kind,
        reason=error.reason,
        status=outcome.status,
        failures=outcome.failures,
    )


def park(intent: Intent, lease: Lease, deps: Dependencies) -> None:
    """Quarantine a server whose looks keep killing their workers, and have it tried only once in the longest wait.

    Raises:
        LeaseHeld: another run may have looked meanwhile; nothing more is written.
    """
    attempts = deps.failure_policy.quarantine_after
    reason = f"{intent.server_id}: {attempts} looks in a row did not end; parked, and tried again now and then"
    _write(FailureOutcome(reason, "quarantined", attempts, None), known_record(intent, deps), intent, lease, deps)
    lease.assert_held()
    deps.intents.park(intent.server_id, intent.desired, reason)  # last: until it is written, the sweep comes back
    _log.error("server_parked", server=intent.server_id, attempts=attempts)


def _write(outcome: FailureOutcome, before: ServerRecord, intent: Intent, lease: Lease, deps: Dependencies) -> None:
    groups = intent.announcement.groups
    if outcome.status != before.status or groups != before.groups:
        lease.assert_held()
        invalidate_record(before, deps)
        lease.assert_held()
        deps.index.set_status_and_groups(intent.server_id, status=outcome.status, groups=groups)
    changes = {
        "endpoint": intent.announcement.endpoint,
        "status": outcome.status,
        "groups": groups,
        "source": intent.source,
        "generation": intent.desired,
        "revision": deps.intents.next_revision(),
        "stale_since": before.stale_since or deps.intents.now(),
        "last_error": outcome.reason,
        "failures": outcome.failures,
        "next_reconcile_at": outcome.next_reconcile_at,
    }
    lease.assert_held()
    deps.index.put_server(before.model_copy(update=changes))


def _status(before: ServerRecord, after: Intent, deps: Dependencies) -> Status:
    return "quarantined" if after.failures >= deps.failure_policy.quarantine_after else before.status


def _silent_for_s(record: ServerRecord, intent: Intent, deps: Dependencies) -> float:
    """Return how long the server gave no list, counted from its last announcement at the earliest.

    By the store's clock: whoever noted the beginning may have had another than this worker.
    """
    return deps.intents.now() - max(record.stale_since, intent.announced_at) if record.stale_since else 0.0
