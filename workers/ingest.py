"""The main write path: make the index equal to the tools that one server offers now.

    event ─▶ intent ─▶ reconcile ─▶ list every page ─▶ hold ─▶ compare digests ─▶ look up, or count and embed ─▶ write

An event only requests a reconciliation. The listing is compared with the index, and the work grows with the
difference: an unchanged server costs one listing, without counting, embedding or writing a tool.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace

import structlog

from shared.catalog import (
    EmbeddedTool,
    Listing,
    ToolDefinition,
    digest,
)
from shared.errors import ServerError, ServerTimeout
from shared.index.tools import ToolIndex
from shared.intents.intent import Intent
from shared.service.tracing import SpanKind, span
from shared.text.tokens import indexed_tool
from workers.dependencies import Dependencies
from workers.indexing.changes import review
from workers.indexing.features import FeatureDependencies, compute_features
from workers.indexing.records import (
    invalidate_record,
    is_current,
    known_record,
    listed_record,
    park,
    record_failure,
    stopped_record,
    unlisted_record,
)
from workers.monitoring.metrics import stage
from workers.upkeep.migrate import SOURCE as MIGRATION_SOURCE

SOURCE = "toolscale/worker"

# Tools counted, embedded and written at a time, so that the memory does not grow with the server. Another server
# with the same tools waits until this run has written its batch: about half a second of embedding.
BATCH = 64


@dataclass(frozen=True, slots=True)
class Ingested:
    """Numbers of tools in one reconciliation.

    `offered` tools are usable, and `rejected` ones invalid. `written` tools are new or changed; `added` counts the new
    ones among them. `removed` tools are no longer in the listing, or held. `unaccepted` ones have a changed definition,
    and `held` ones of them are not served. `catalogue_id` is that of the record, None if no listing was read.
    """

    offered: int = 0
    added: int = 0
    written: int = 0
    removed: int = 0
    rejected: int = 0
    unaccepted: int = 0
    held: int = 0
    catalogue_id: str | None = None

    def counts(self) -> dict[str, int]:
        """Return the numbers of tools, by name."""
        return {name: count for name, count in asdict(self).items() if name != "catalogue_id"}

    @property
    def outcome(self) -> str:
        """Return the numbers as Flower shows them; of the differences only those that exist."""
        numbers = {"written": self.written, "removed": self.removed, "rejected": self.rejected, "held": self.held}
        tools = f"{self.offered} {'tool' if self.offered == 1 else 'tools'}"
        return ", ".join((tools, *(f"{number} {name}" for name, number in numbers.items() if number)))


@dataclass(frozen=True, slots=True)
class Hidden(Ingested):
    """The result for a stopped server, whose tools are hidden."""

    @property
    def outcome(self) -> str:
        """Return the result as Flower shows it."""
        return "stopped"


@dataclass(frozen=True, slots=True)
class Run:
    """One reconciliation: its intent, and the active index version as of its beginning."""

    intent: Intent
    index: ToolIndex
    features: FeatureDependencies
    deps: Dependencies


def reconcile(server_id: str, deps: Dependencies) -> Ingested | None:
    """Make the index equal to this server as it is now; None when no reconciliation is due.

    A large listing acquires a slot; the run releases it at its end.
    Safe to repeat and to interrupt: the intent is committed last, and until then the sweep retries.

    Raises:
        ServerError: the server could not be listed; its last tools stay and are marked stale.
        LeaseHeld: another run has the lease, or this run lost it; a lost lease requests another reconciliation, since
            writes may have come late.
    """
    with deps.intents.held(server_id), deps.slots.released(server_id):
        intent = deps.intents.begin(server_id)
        if intent is None:
            return None
        try:
            with span("reconcile", intent.traceparent, SpanKind.CONSUMER, server=server_id, generation=intent.desired):
                return _reconcile_intent(intent, deps)
        except ServerError:
            raise  # the failure is recorded
        except Exception:  # an internal error: it does not count as a worker's death
            deps.intents.retry_later(server_id)
            raise


def ingest(listing: Listing, run: Run) -> Ingested:
    """Make the index hold exactly these tools of the server; a second run with the same listing writes no tool."""
    intent, index, groups = run.intent, run.index, run.intent.announcement.groups
    before, states = index.server(intent.server_id), index.tool_states(intent.server_id)
    listed = {tool.name: digest(tool, listing.declared_name) for tool in listing.tools}
    reviewed = review(listing, listed, states, intent, index, run.deps.intents, run.deps.definition_changes)
    listing, wanted = reviewed.listing, {tool.name: listed[tool.name] for tool in reviewed.listing.tools}
    indexed = {name: (state.digest, state.changed_since) for name, state in states.items()}
    changed = [
        tool
        for tool in listing.tools
        if indexed.get(tool.name) != (wanted[tool.name], reviewed.changed_since.get(tool.name))
    ]
    gone = states.keys() - wanted.keys()
    # the record alone is not enough: a run that lost its lease may have written tools after it
    unchanged = is_current(before, groups, listing.declared_name) and all(
        state.status == "running" and state.groups == groups for state in states.values()
    )
    if changed or gone or not unchanged:
        invalidate_record(before, index, listing.declared_name)
    for start in range(0, len(changed), BATCH):
        batch = {wanted[tool.name]: tool for tool in changed[start : start + BATCH]}
        _write_batch(batch, listing.declared_name, reviewed.changed_since, run)
    index.delete(intent.server_id, gone)
    if states and not unchanged:  # new tools are written with both
        index.set_status_and_groups(intent.server_id, status="running", groups=groups)
    record = listed_record(
        reviewed, wanted, intent, before, index, run.deps.intents.next_revision, run.features.embedder
    )
    index.put_server(record)
    added, rejected = len(wanted.keys() - states.keys()), len(listing.rejected)
    numbers = (len(wanted), added, len(changed), len(gone), rejected, reviewed.unaccepted, reviewed.held)
    return Ingested(*numbers, record.catalogue_id)


def _reconcile_intent(intent: Intent, deps: Dependencies) -> Ingested | None:
    active = deps.active()
    index = active.index
    if intent.parked:
        # logged before the listing: if the server kills this worker, it is the last line of its log
        structlog.get_logger().warning("parked_server_retried", server=intent.server_id, attempt=intent.attempts)
    elif intent.attempts > deps.failure_policy.quarantine_after:
        park(intent, index, deps.intents, deps.failure_policy.quarantine_after)
        return None
    if intent.status == "stopped":
        # hidden and not counted; the tools stay, so that the server's return embeds nothing
        next_revision = deps.intents.next_revision
        record = stopped_record(known_record(intent, index, next_revision), intent, next_revision())
        invalidate_record(index.server(intent.server_id), index)
        index.set_status_and_groups(intent.server_id, status="stopped", groups=intent.announcement.groups)
        index.put_server(record)
        structlog.get_logger().info("server_stopped", server=intent.server_id, generation=intent.desired)
        ingested: Ingested = Hidden()
    else:
        features = FeatureDependencies(index, active.embedder, deps.counters, deps.computing, deps.feature_locks)
        ingested = _reconcile_running(Run(intent, index, features, deps))
    if not deps.is_active(active.version):
        deps.intents.request(intent.server_id, MIGRATION_SOURCE)  # the tools went to the previous version
    unaccepted = None if ingested.catalogue_id is None else ingested.unaccepted
    deps.intents.commit(intent.server_id, intent.desired, ingested.catalogue_id, unaccepted)
    return ingested


def _reconcile_running(run: Run) -> Ingested:
    intent, index, deps = run.intent, run.index, run.deps
    log = structlog.get_logger().bind(server=intent.server_id, generation=intent.desired, attempt=intent.attempts)
    started = time.monotonic()
    if index.server(intent.server_id) is None:
        index.put_server(unlisted_record(intent, deps.intents.next_revision()))  # responses report it as pending
    try:
        with stage("fetch"):
            listing = deps.list_server(intent)
    except ServerError as error:
        record_failure(error, intent, index, deps.intents, deps.failure_policy)
        was_slow = isinstance(error, ServerTimeout) and intent.announcement.transport == "stdio"
        has_failed_rarely = intent.failures + 1 < deps.failure_policy.quarantine_after
        if was_slow and has_failed_rarely and deps.starts.waiting:  # others that started may have crowded it out
            deps.intents.request(intent.server_id, SOURCE)
        raise
    ingested = ingest(listing, run)
    if listing.marked:
        log.warning("invisible_definitions", tools=listing.marked)
    took_ms = round((time.monotonic() - started) * 1000)
    log.info("server_indexed", took_ms=took_ms, **ingested.counts())
    return ingested


def _write_batch(
    definitions: Mapping[str, ToolDefinition], declared_name: str, changed_since: Mapping[str, str], run: Run
) -> None:
    """Write the tools of these digests, in parts as their features become available."""
    server_id, groups = run.intent.server_id, run.intent.announcement.groups
    with closing(compute_features(definitions, declared_name, run.features)) as parts:  # a failed write ends it
        for part in parts:
            tools: list[EmbeddedTool] = []
            for tool_digest, features in part.items():
                definition = definitions[tool_digest]
                tool = indexed_tool(server_id, definition, tool_digest, features, groups)
                tool = replace(tool, changed_since=changed_since.get(definition.name))
                tools.append(EmbeddedTool(tool, features.vectors))
            with stage("upsert"):
                run.index.upsert(tools)
