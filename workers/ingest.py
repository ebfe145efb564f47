"""The main write path: make the index equal to what one server offers now.

    event ─▶ intent ─▶ reconcile ─▶ list every page ─▶ compare digests ─▶ look up, or count and embed ─▶ write

An event only says "reconcile". What is found is compared with what the index holds, and work grows with the difference:
an unchanged server costs one listing; nothing is counted, nothing embedded, no tool written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

import structlog

from shared.catalog import EmbeddedTool, IndexedTool, Listing, ToolDefinition, ToolFeatures, digest
from shared.errors import ServerError
from shared.index.contract import ToolState
from shared.observability.tracing import SpanKind, span
from workers.dependencies import Dependencies
from workers.indexing.failures import park, record_failure
from workers.indexing.features import compute_features
from workers.indexing.records import invalidate_record, is_current, listed_record, stopped_record, unlisted_record
from workers.intents.leases import held
from workers.intents.store import Intent, Lease
from workers.maintenance.migrate import without_unusable

# Tools counted, embedded and written at a time, so that a large server needs no more memory than a small one. Few
# enough that a replica, which waits for what another look is making, waits for half a second of embedding.
BATCH = 64


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one look at a server took: tools offered, written, removed, left out; of those written, which are new."""

    offered: int = 0
    added: int = 0
    written: int = 0
    removed: int = 0
    rejected: int = 0


def reconcile(server_id: str, deps: Dependencies) -> Ingested | None:
    """Make the index equal to this server as it is now; None when no event asks for a look.

    Safe to repeat and to interrupt anywhere: the intent is committed last, and until then the sweep comes back.

    Raises:
        ServerError: the server could not be listed; its last good tools stay and are marked stale.
        LeaseHeld: another run is at it, and will see that it was asked again; or this one was suspended for so long
            that another may have been, and one more look was asked for, since its last write may have come late.
    """
    with held(server_id, deps.intents) as lease, deps.slots.released(server_id):
        intent = deps.intents.begin(server_id)
        if intent is None:
            return None
        try:
            with span("reconcile", intent.traceparent, SpanKind.CONSUMER, server=server_id, generation=intent.desired):
                return _reconcile_intent(intent, lease, deps.pinned())
        except ServerError:
            raise  # the setback is written down, or the lease is another's
        except Exception:  # whatever else ends a look is our own trouble: it counts as no death of a worker
            deps.intents.retry_later(server_id)
            raise


def _reconcile_intent(intent: Intent, lease: Lease, deps: Dependencies) -> Ingested | None:
    if intent.parked:
        # the last line of a worker that the server kills
        structlog.get_logger().warning("parked_server_retried", server=intent.server_id, attempt=intent.attempts)
    elif intent.attempts > deps.failure_policy.quarantine_after:
        park(intent, lease, deps)
        return None
    ingested = (
        _reconcile_stopped(intent, lease, deps)
        if intent.status == "stopped"
        else _reconcile_running(intent, lease, deps)
    )
    lease.assert_held()  # or the last write may have come after another run's
    deps.intents.commit(intent.server_id, intent.desired)
    return ingested


def ingest(listing: Listing, intent: Intent, lease: Lease, deps: Dependencies) -> Ingested:
    """Make the index hold exactly these tools of the server; a second run with the same listing writes no tool."""
    server_id, groups = intent.server_id, intent.announcement.groups
    before = deps.index.server(server_id)
    active_states = deps.index.tool_states(server_id)
    wanted = {tool.name: digest(tool, listing.declared_name) for tool in listing.tools}
    changed = [
        tool
        for tool in listing.tools
        if tool.name not in active_states or active_states[tool.name].digest != wanted[tool.name]
    ]
    gone = active_states.keys() - wanted.keys()
    unchanged = is_current(before, groups, listing.declared_name) and _all_current(active_states.values(), groups)
    if not unchanged:
        lease.assert_held()
        invalidate_record(before, deps, listing.declared_name)

    written = without_unusable(deps).targets if changed else []
    for start in range(0, len(changed), BATCH):
        batch = {wanted[tool.name]: tool for tool in changed[start : start + BATCH]}
        for version in written:
            compute_features(batch, listing.declared_name, version, partial(_write, batch, intent, lease, version))
    lease.assert_held()
    deps.index.delete(server_id, gone)
    if not unchanged:
        lease.assert_held()
        deps.index.set_status_and_groups(server_id, status="running", groups=groups)
    record = listed_record(listing, wanted, intent, before, deps)
    lease.assert_held()
    deps.index.put_server(record)
    added = len(wanted.keys() - active_states.keys())
    return Ingested(len(wanted), added, len(changed), len(gone), len(listing.rejected))


def _all_current(states: Iterable[ToolState], groups: frozenset[str]) -> bool:
    """Return whether all are as their record says; one that lost its lease may have written something late."""
    return all(state.status == "running" and state.groups == groups for state in states)


def _reconcile_running(intent: Intent, lease: Lease, deps: Dependencies) -> Ingested:
    log = structlog.get_logger().bind(server=intent.server_id, generation=intent.desired, attempt=intent.attempts)
    started = time.monotonic()
    if deps.index.server(intent.server_id) is None:
        record = unlisted_record(intent, deps)
        lease.assert_held()
        deps.index.put_server(record)  # an early caller hears that there is more to come
    try:
        with deps.metrics.stage("fetch"):
            listing = deps.list_server(intent)
    except ServerError as error:
        record_failure(error, intent, lease, deps)
        raise
    ingested = ingest(listing, intent, lease, deps)
    took_ms = round((time.monotonic() - started) * 1000)
    log.info("server_indexed", took_ms=took_ms, **asdict(ingested))
    return ingested


def _reconcile_stopped(intent: Intent, lease: Lease, deps: Dependencies) -> Ingested:
    """Make the server's tools unfindable and uncounted, and keep them, so that its return embeds nothing."""
    record = stopped_record(intent, deps)
    before = deps.index.server(intent.server_id)
    lease.assert_held()
    invalidate_record(before, deps)
    lease.assert_held()
    deps.index.set_status_and_groups(intent.server_id, status="stopped", groups=intent.announcement.groups)
    lease.assert_held()
    deps.index.put_server(record)
    structlog.get_logger().info("server_stopped", server=intent.server_id, generation=intent.desired)
    return Ingested()


def _write(
    definitions: Mapping[str, ToolDefinition],
    intent: Intent,
    lease: Lease,
    deps: Dependencies,
    features: Mapping[str, ToolFeatures],
) -> None:
    """Write the server's tools of these digests."""
    server_id, groups = intent.server_id, intent.announcement.groups
    lease.assert_held()
    tools = [
        EmbeddedTool(
            IndexedTool(server_id, definitions[tool_digest], tool_digest, tool_features.token_counts, groups),
            tool_features.vectors,
        )
        for tool_digest, tool_features in features.items()
    ]
    with deps.metrics.stage("upsert"):
        deps.index.upsert(tools)
