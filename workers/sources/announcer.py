"""Announce the differences between a source of running servers and the intents.

A source is an operator's file, Docker or Kubernetes. The reconciliation of a server is in `workers/ingest.py`.

A source lists the current servers, not their changes, so a missed change does no harm.
The intents carry the name of their source, and outlive this process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import structlog
from prometheus_client import Gauge

from shared.errors import EventInvalid
from shared.events import ServerAnnouncement, ServerDown, ServerEvent, ServerRef, ServerUp
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.upstream.mcp_json import SOURCE, Config

RECONCILED_AT = Gauge(
    "toolscale_source_reconciled_timestamp_seconds",
    "Time at which the intents last matched a source, or at which this process began to follow it.",
    ["source"],
)

_log = structlog.get_logger()

Emit = Callable[[ServerEvent], Intent]
"""Records an event durably and sends a message; raises IntentsUnavailable if the event was not recorded."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that should run; a changed `fingerprint`, for example after a restart, announces it again."""

    announcement: ServerAnnouncement
    fingerprint: object


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
        wanted = _by_id(running)
        recorded = self._recorded()
        changed = [
            server
            for server_id, server in wanted.items()
            if self._announced.get(server_id) != server or not _agrees(recorded.get(server_id), server)
        ]
        return self._announce_all(changed) + self._take_down_all_but({*wanted, *kept}, recorded.values())

    def recheck(self, running: Iterable[Running], kept: Collection[str] = ()) -> list[Intent]:
        """Announce servers without an intent of this source, and take down those that are neither running nor kept."""
        wanted = _by_id(running)
        recorded = self._recorded()
        missing = [server for server_id, server in wanted.items() if server_id not in recorded]
        return self._announce_all(missing) + self._take_down_all_but({*wanted, *kept}, recorded.values())

    def _recorded(self) -> dict[str, Intent]:
        return {intent.server_id: intent for intent in self._intents.intents() if intent.source == self._source}

    def _take_down_all_but(self, kept: Collection[str], recorded: Iterable[Intent]) -> list[Intent]:
        running = [intent.server_id for intent in recorded if intent.status == "running"]
        return [self._take_down(server_id) for server_id in running if server_id not in kept]

    def _announce_all(self, running: Iterable[Running]) -> list[Intent]:
        """Announce these servers; a server of another owner is logged once and does not affect the others."""
        emitted: list[Intent] = []
        for server in running:
            try:
                emitted.append(self._announce(server))
            except EventInvalid as error:
                self._report(server.announcement, error)
        return emitted

    def _report(self, announcement: ServerAnnouncement, error: EventInvalid) -> None:
        """Log an announcement that was refused and store it as a dead letter, once in this process."""
        if (announcement.server_id, error.reason) not in self._reported:
            self._reported.add((announcement.server_id, error.reason))
            event = ServerUp(source=self._source, data=announcement)
            self._intents.add_dead_letter(str(error), event.model_dump_json())
            _log.warning(
                "server_not_announced", origin=self._source, server=announcement.server_id, reason=error.reason
            )

    def _announce(self, running: Running) -> Intent:
        intent = self._emit(ServerUp(source=self._source, data=running.announcement))
        self._announced[running.announcement.server_id] = running
        return intent

    def _take_down(self, server_id: str) -> Intent:
        intent = self._emit(ServerDown(source=self._source, data=ServerRef(server_id=server_id)))
        self._announced.pop(server_id, None)
        return intent


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
    """Return the usable servers of a file; a different command, environment or header changes the fingerprint.

    The result omits a server that the file names and that is unusable, for example because a variable is not set.
    """
    return [Running(announcement, config.targets.get(announcement.server_id)) for announcement in config.announcements]


def _by_id(running: Iterable[Running]) -> dict[str, Running]:
    """Return the first server of each id: replicas of a server are one server."""
    by_id: dict[str, Running] = {}
    for server in running:
        by_id.setdefault(server.announcement.server_id, server)
    return by_id


def _agrees(intent: Intent | None, running: Running) -> bool:
    return intent is not None and intent.status == "running" and intent.announcement == running.announcement
