"""Announce the differences between a source of running servers and the intents.

A source is an operator's file, Docker or Kubernetes. The reconciliation of a server is in `workers/ingest.py`.

A source lists the current servers, not their changes, so a missed change does no harm.
The intents carry the name of their source, and outlive this process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import Gauge
from pydantic import ValidationError

from shared.errors import EventInvalid, Retryable
from shared.events import ServerAnnouncement, ServerDown, ServerEvent, ServerRef, ServerUp
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.upstream.mcp_json import SOURCE, Config
from shared.validation import first_problem

RECONCILED_AT = Gauge(
    "toolscale_source_reconciled_timestamp_seconds",
    "Time at which the intents last matched a source, or at which this process began to follow it.",
    ["source"],
)

# The longest delay of a change.
LIST_EVERY_S = 5.0
# A watcher without a list for so long is not ready: the orchestrator, or the intent store, does not answer.
READY_WITHIN_S = 60.0

_log = structlog.get_logger()

Emit = Callable[[ServerEvent], Intent]
"""Records an event durably and sends a message; raises IntentsUnavailable if the event was not recorded."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that should run; a changed `fingerprint`, for example after a restart, announces it again.

    Servers of one id are replicas if they have one `owner`. Of several owners, the first has it: `since` sorts them.
    """

    announcement: ServerAnnouncement
    fingerprint: object
    owner: str = ""
    since: str = ""


class SourceAnnouncer:
    """Announces and takes down the servers of one source, so that the intents match the source.

    Idempotent, also from several processes: an event only requests a reconciliation. After a failure, the next call
    completes the work. If two sources announce the same server, it belongs to the first, and the operator's file wins.
    """

    def __init__(self, source: str, intents: Intents, emit: Emit) -> None:
        self._source = source
        self._intents = intents
        self._emit = emit
        self._announced: dict[str, Running] = {}
        self._reported: set[tuple[str, str]] = set()

    def announce_differences(self, running: Iterable[Running], kept: Collection[str] = ()) -> list[Intent]:
        """Make the intents of this source match the running servers; leave servers in `kept` unchanged.

        A server that this process has announced is announced again only if it, or its intent, changed.
        """
        recorded = self._recorded()
        wanted, rivals = self._owned(running, recorded)
        changed = [
            server
            for server_id, server in wanted.items()
            if self._announced.get(server_id) != server
            or (intent := recorded.get(server_id)) is None
            or (intent.status, intent.announcement) != ("running", server.announcement)
        ]
        emitted = self._emit_all(changed, {*wanted, *kept}, recorded.values())
        for server in rivals:
            self._refuse(server, wanted[server.announcement.server_id])
        return emitted

    def recheck(self, running: Iterable[Running], kept: Collection[str] = ()) -> list[Intent]:
        """Announce servers without an intent of this source, and take down those that are neither running nor kept."""
        recorded = self._recorded()
        wanted, _ = self._owned(running, recorded)
        missing = [server for server_id, server in wanted.items() if server_id not in recorded]
        return self._emit_all(missing, {*wanted, *kept}, recorded.values())

    def _owned(
        self, running: Iterable[Running], recorded: Mapping[str, Intent]
    ) -> tuple[dict[str, Running], list[Running]]:
        """Return the first server of each id, and those with its id and another owner.

        The owner that was announced stays the owner, also where its server was replaced by a newer one.
        """

        def rank(server: Running) -> tuple[bool, str]:
            server_id = server.announcement.server_id
            before, intent = self._announced.get(server_id), recorded.get(server_id)
            if before:
                return before.owner != server.owner, server.since
            return bool(intent and intent.announcement != server.announcement), server.since

        wanted: dict[str, Running] = {}
        ranked = sorted(running, key=rank)
        rivals = [each for each in ranked if wanted.setdefault(each.announcement.server_id, each).owner != each.owner]
        return wanted, rivals

    def _refuse(self, rival: Running, first: Running) -> None:
        """Store and log an announcement of an id that another owner has; the owner's server shows it as a conflict."""
        server_id = first.announcement.server_id
        intent = self._intents.intent(server_id)
        if intent is None or intent.status != "running":  # then an event would give it to the rival
            return
        event = ServerUp(source=f"{self._source}/{rival.owner}", data=rival.announcement)
        try:
            self._emit(event)
        except EventInvalid:
            reason = (
                f"{rival.owner} announces {server_id!r} too, which {first.owner} announced first; it needs another id"
            )
            self._report(event, EventInvalid("data.server_id", reason))

    def _report(self, event: ServerUp, error: EventInvalid) -> None:
        server_id = event.data.server_id
        if (server_id, error.reason) not in self._reported:
            self._reported.add((server_id, error.reason))
            self._intents.add_dead_letter(str(error), event.model_dump_json())
            _log.warning("server_not_announced", origin=event.source, server=server_id, reason=error.reason)

    def _recorded(self) -> dict[str, Intent]:
        return {intent.server_id: intent for intent in self._intents.intents() if intent.source == self._source}

    def _emit_all(
        self, announced: Iterable[Running], kept: Collection[str], recorded: Iterable[Intent]
    ) -> list[Intent]:
        """Announce these servers, and take down the recorded ones that are not kept.

        An announcement that is refused, for example of another owner's server, does not affect the others. It is
        logged and stored as a dead letter, once in this process.
        """
        emitted: list[Intent] = []
        for server in announced:
            server_id, event = server.announcement.server_id, ServerUp(source=self._source, data=server.announcement)
            try:
                emitted.append(self._emit(event))
                self._announced[server_id] = server
            except EventInvalid as error:
                self._report(event, error)
        for intent in recorded:
            if intent.status == "running" and intent.server_id not in kept:
                down = ServerDown(source=self._source, data=ServerRef(server_id=intent.server_id))
                emitted.append(self._emit(down))
                self._announced.pop(intent.server_id, None)
        return emitted


def announce_config(config: Config, intents: Intents, emit: Emit) -> list[Intent]:
    """Announce the servers of the operator's file, and request a reconciliation of all other running servers."""
    return SourceAnnouncer(SOURCE, intents, emit).announce_differences(running(config), config.named) + announce_again(
        intents, emit
    )


def announce_again(intents: Intents, emit: Emit) -> list[Intent]:
    """Request a reconciliation of every running server that is not from the operator's file.

    The announcements repeat the stored ones, so a parked server stays parked.
    """
    others = [intent for intent in intents.intents() if intent.status == "running" and intent.source != SOURCE]
    return [emit(ServerUp(source=intent.source, data=intent.announcement)) for intent in others]


def running(config: Config) -> list[Running]:
    """Return the usable servers of a file; a different target or option changes the fingerprint.

    The result omits a server that the file names and that is unusable, for example because a variable is not set.
    """
    return [
        Running(announcement, (config.targets.get(announcement.server_id), config.options.get(announcement.server_id)))
        for announcement in config.announcements
    ]


class SourceUnavailable(Retryable):
    """An orchestrator did not answer, or its response was incomplete."""


class Source(Protocol):
    """A source of running servers."""

    name: str

    def running(self) -> list[Running]:
        """Return all servers that are running.

        Raises:
            SourceUnavailable: the orchestrator did not answer.
        """
        ...


class Watcher:
    """Announces the differences between a source and its intents; calls `beat` after each success."""

    def __init__(self, source: Source, announcer: SourceAnnouncer, *, beat: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._announcer = announcer
        self._beat = beat
        self._reconciled_at = RECONCILED_AT.labels(source.name)
        self._reconciled_at.set_to_current_time()

    def announce(self) -> None:
        """List the source, and announce the differences.

        Raises:
            SourceUnavailable: the source did not answer; no server is taken down.
            IntentsUnavailable: the intent store did not answer.
            EventInvalid: an event was refused.
        """
        emitted = self._announcer.announce_differences(self._source.running())
        self._reconciled_at.set_to_current_time()
        if emitted:
            _log.info("source_reconciled", source=self._source.name, events=len(emitted))
        self._beat()


class Announcements:
    """Reads announcements from labels and annotations; an invalid one is logged once and skipped."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def read(self, origin: str, data: dict[str, object]) -> ServerAnnouncement | None:
        """Return the announcement of these fields, None if they are invalid; `origin` names their object in the log."""
        try:
            return ServerAnnouncement.model_validate({key: value for key, value in data.items() if value is not None})
        except ValidationError as error:
            self.refuse(origin, error)
            return None

    def refuse(self, origin: str, error: ValidationError) -> None:
        """Log once that the object is invalid."""
        reason = first_problem(error, "server")
        if (origin, reason) not in self._reported:
            self._reported.add((origin, reason))
            _log.warning("server_not_announced", origin=origin, reason=reason)


def scoped(source: str, scope: str) -> str:
    """Return the name of a source with its scope, if it has one."""
    return f"{source}/{scope}" if scope else source


def names(text: str | None) -> list[str]:
    """Return the values of a label, separated by commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
