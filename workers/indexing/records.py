"""The server record that follows each outcome of a reconciliation. Failures do not affect other servers.

stale         its last tools are still found, and marked
quarantined   its tools are hidden; retries continue with growing pauses until a listing succeeds
parked        quarantined because its reconciliations killed workers; it is retried once per longest pause
stopped       no more retries until it is announced again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from shared.catalog import ENCODINGS, FEATURES_VERSION, ServerRecord, Status, catalog_digest
from shared.errors import ServerError, SignInRequired
from shared.index.tools import ToolIndex
from shared.intents import times
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.text.embedding import Embedder
from shared.text.subjects import subjects_of
from workers.indexing.changes import Review

NextRevision = Callable[[], int]

# As many decide on the subjects of a server as well as all.
TOOLS_FOR_SUBJECTS = 64

_log = structlog.get_logger()


def listed_record(
    reviewed: Review,
    digests: Mapping[str, str],
    intent: Intent,
    before: ServerRecord | None,
    index: ToolIndex,
    next_revision: NextRevision,
    embedder: Embedder,
) -> ServerRecord:
    """Return the record after a complete listing whose tools are in the index.

    The token sums and the subjects come from the previous record if it has the same catalog digest, otherwise from the
    index. A run that was killed between its tools and its record therefore leaves no wrong sum.
    """
    listing, current_digest = reviewed.listing, catalog_digest(digests)
    known = before if before and before.is_listed and before.catalog_digest == current_digest else None
    sums = (
        known.model_dump(include={"tokens", "model_tokens", "uncounted", "subjects"})
        if known
        else _sums(index, intent.server_id) | {"subjects": _subjects(index, digests, embedder)}
    )
    record = unlisted_record(intent, known.revision if known else 0).model_copy(
        update={
            "declared_name": listing.declared_name,
            "protocol_version": listing.protocol_version,
            "tool_count": len(digests),
            **sums,
            "rejected": listing.rejected,
            "marked": listing.marked,
            "unaccepted": reviewed.unaccepted,
            "held": reviewed.held,
            "features_version": FEATURES_VERSION,
            "catalog_digest": current_digest,
            "last_listed_at": time.time(),
        }
    )
    if known and _visible_to_readers(record) == _visible_to_readers(known):
        return record  # with the previous revision, so that readers do not read it again
    return record.model_copy(update={"revision": next_revision()})


def unlisted_record(intent: Intent, revision: int) -> ServerRecord:
    """Return the record of an announced server without a listing."""
    return ServerRecord(
        server_id=intent.server_id,
        endpoint=intent.announcement.endpoint,
        groups=intent.announcement.groups,
        labels=intent.announcement.labels,
        source=intent.source,
        generation=intent.desired,
        revision=revision,
    )


def stopped_record(before: ServerRecord, intent: Intent, revision: int) -> ServerRecord:
    """Return the record of a stopped server: its last listing, not counted."""
    return before.model_copy(
        update={
            "status": "stopped",
            "stopped_at": before.stopped_at or time.time(),
            "next_reconcile_at": None,
            "groups": intent.announcement.groups,
            "source": intent.source,
            "generation": intent.desired,
            "revision": revision,
        }
    )


def is_current(record: ServerRecord | None, groups: frozenset[str], declared_name: str) -> bool:
    """Return whether the record confirms that all tools are running, in these groups and under this name."""
    return bool(
        record
        and record.catalog_digest
        and record.status == "running"
        and record.groups == groups
        and record.declared_name == declared_name
    )


def invalidate_record(record: ServerRecord | None, index: ToolIndex, declared_name: str | None = None) -> None:
    """Clear the record's catalog digest before any of the tools changes.

    If the run is killed between its writes, the next run does not trust the record. An audit skips such a record.
    The new `declared_name` is stored too, since a migration embeds the tools with the name of the record.
    """
    if record and (record.catalog_digest or record.declared_name != (declared_name or record.declared_name)):
        renamed = {} if declared_name is None else {"declared_name": declared_name}
        index.put_server(record.model_copy(update={"catalog_digest": "", **renamed}))


def known_record(intent: Intent, index: ToolIndex, next_revision: NextRevision) -> ServerRecord:
    """Return the stored record, or a new one from the announcement."""
    return index.server(intent.server_id) or unlisted_record(intent, next_revision())


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Failed reconciliations until a server is quarantined, and seconds without a listing until it is stopped."""

    quarantine_after: int = times.QUARANTINE_AFTER
    give_up_after_s: float = 86_400.0


def record_failure(
    error: ServerError, intent: Intent, index: ToolIndex, intents: Intents, policy: FailurePolicy
) -> None:
    """Record a failed listing: mark the server stale, quarantine it after several failures, stop it after a day.

    The tools of a server that needs a sign-in stay: a person will sign in.
    """
    before, reason = known_record(intent, index, intents.next_revision), str(error)
    if isinstance(error, SignInRequired):
        after = intents.fail(intent.server_id, intent.desired, reason)
        _put_failed(
            *(before, intent, index, intents),
            status="running",
            reason=reason,
            failures=after.failures,
            next_at=after.due_at,
            needs_sign_in=True,
        )
        if not before.needs_sign_in:
            _log.warning("sign_in_required", server=intent.server_id)
        return
    # from the last announcement at the earliest, by the store's clock
    silent_s = intents.now() - max(before.stale_since, intent.announced_at) if before.stale_since else 0.0
    status: Status = "stopped"
    if silent_s >= policy.give_up_after_s:
        failures = intent.failures + 1
        _put_failed(before, intent, index, intents, status=status, reason=reason, failures=failures)
        intents.stop_retrying(intent.server_id, intent.desired, reason)  # last: it ends the retries
    else:
        after = intents.fail(intent.server_id, intent.desired, reason)
        failures = after.failures
        status = "quarantined" if failures >= policy.quarantine_after else before.status
        _put_failed(
            *(before, intent, index, intents), status=status, reason=reason, failures=failures, next_at=after.due_at
        )
    _log.warning(
        "server_listing_failed",
        server=intent.server_id,
        error=error.kind,
        reason=error.reason,
        status=status,
        failures=failures,
    )


def park(intent: Intent, index: ToolIndex, intents: Intents, attempts: int) -> None:
    """Quarantine a server whose last `attempts` reconciliations killed their workers, and retry it rarely."""
    reason = f"{intent.server_id}: {attempts} reconciliations in a row did not end; parked, and retried rarely"
    before = known_record(intent, index, intents.next_revision)
    _put_failed(before, intent, index, intents, status="quarantined", reason=reason, failures=attempts)
    intents.park(intent.server_id, intent.desired, reason)  # last: until then, the sweep retries it
    _log.error("server_parked", server=intent.server_id, attempts=attempts)


def _put_failed(
    before: ServerRecord,
    intent: Intent,
    index: ToolIndex,
    intents: Intents,
    *,
    status: Status,
    reason: str,
    failures: int,
    next_at: float | None = None,
    needs_sign_in: bool = False,
) -> None:
    """Write the record of a server after a failure, and its status to its tools."""
    groups = intent.announcement.groups
    # compared with the tools, not the record: after a model change, tools may have an older status
    states = index.tool_states(intent.server_id).values()
    if any(state.status != status or state.groups != groups for state in states):
        invalidate_record(before, index)
        index.set_status_and_groups(intent.server_id, status=status, groups=groups)
    changes = {
        "endpoint": intent.announcement.endpoint,
        "status": status,
        "stopped_at": time.time() if status == "stopped" else None,
        "groups": groups,
        "source": intent.source,
        "generation": intent.desired,
        "revision": intents.next_revision(),
        "stale_since": before.stale_since or intents.now(),
        "last_error": reason,
        "needs_sign_in": needs_sign_in,
        "failures": failures,
        "next_reconcile_at": next_at,
    }
    index.put_server(before.model_copy(update=changes))


def _visible_to_readers(record: ServerRecord) -> ServerRecord:
    """Return the record without the time and the generation of its confirmation, which readers ignore."""
    return record.model_copy(update={"generation": 0, "last_listed_at": None})


def _subjects(index: ToolIndex, digests: Mapping[str, str], embedder: Embedder) -> tuple[str, ...]:
    """Return the subjects of the tools with these digests, which the index has; of many tools, those of some."""
    features = index.features_by_digest(sorted(digests.values())[:TOOLS_FOR_SUBJECTS])
    return subjects_of([each.vectors for each in features.values()], embedder)


def _sums(index: ToolIndex, server_id: str) -> dict[str, object]:
    """Return the sums of a record, from the tools in the index."""
    states = index.tool_states(server_id)
    wire = [state.token_counts for state in states.values()]
    model = [state.model_counts for state in states.values()]
    uncounted = {
        encoding: tuple(name for name, state in states.items() if encoding not in state.token_counts)
        for encoding in ENCODINGS
    }
    return {
        "tokens": {encoding: sum(counts.get(encoding, 0) for counts in wire) for encoding in ENCODINGS},
        "model_tokens": {encoding: sum(counts.get(encoding, 0) for counts in model) for encoding in ENCODINGS},
        "uncounted": {encoding: names for encoding, names in uncounted.items() if names},
    }
