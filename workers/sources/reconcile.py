"""Make the catalogue follow a source that knows what should run: an operator's file, Docker, Kubernetes.

Such a source says what is, not what happened, so nothing depends on having seen every change.
What it said before is in the intents, which carry its name; they outlive this process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from shared.events import ServerAnnouncement, ServerDown, ServerEvent, ServerRef, ServerUp
from shared.upstream.mcp_json import SOURCE, Config
from workers.intents.store import Intent, IntentStore

Emit = Callable[[ServerEvent], Intent]
"""Record an event durably and wake a worker; raises IntentsUnavailable when nothing was recorded."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that should run. It is announced again whenever its `trace` is another one: restarted, say, or moved."""

    announcement: ServerAnnouncement
    fingerprint: object


class SourceReconciler:
    """Announces and takes down the servers of one source, so that the intents equal what the source says.

    Safe to repeat, from several processes too: an event only says "look". When it fails in the middle, the next
    call does the rest. Two sources that claim the same server overrule each other: the last to speak decides.
    """

    def __init__(self, source: str, intents: IntentStore, emit: Emit) -> None:
        self._source = source
        self._intents = intents
        self._emit = emit
        self._announced: dict[str, Running] = {}

    def reconcile(self, running: Iterable[Running], kept: Collection[str] = ()) -> list[Intent]:
        """Make the intents of this source equal to all that runs; servers in `kept` are left as they are.

        What this process announced before is announced again only when it changed, or when its intent differs.
        """
        wanted = _by_id(running)
        recorded = self._recorded()
        emitted = [
            self._announce(server)
            for server_id, server in wanted.items()
            if self._announced.get(server_id) != server or not _agrees(recorded.get(server_id), server)
        ]
        return emitted + self._take_down_all_but({*wanted, *kept}, recorded.values())

    def take_down_all_but(self, kept: Collection[str]) -> list[Intent]:
        """Take down what the intents say of this source and is not in `kept`; announce nothing."""
        return self._take_down_all_but(kept, self._recorded().values())

    def _recorded(self) -> dict[str, Intent]:
        return {intent.server_id: intent for intent in self._intents.intents() if intent.source == self._source}

    def _take_down_all_but(self, kept: Collection[str], recorded: Iterable[Intent]) -> list[Intent]:
        running = [intent.server_id for intent in recorded if intent.status == "running"]
        return [self._take_down(server_id) for server_id in running if server_id not in kept]

    def _announce(self, running: Running) -> Intent:
        intent = self._emit(ServerUp(source=self._source, data=running.announcement))
        self._announced[running.announcement.server_id] = running
        return intent

    def _take_down(self, server_id: str) -> Intent:
        intent = self._emit(ServerDown(source=self._source, data=ServerRef(server_id=server_id)))
        self._announced.pop(server_id, None)
        return intent


def reconcile_config(config: Config, intents: IntentStore, emit: Emit) -> list[Intent]:
    """Announce every server of the operator's file, and look again at every other that should be running."""
    return SourceReconciler(SOURCE, intents, emit).reconcile(running(config), config.named) + announce_again(
        intents, emit
    )


def announce_again(intents: IntentStore, emit: Emit) -> list[Intent]:
    """Ask for a look at every server that should be running and did not come from the operator's file.

    Each is announced as it was before, which is nothing new: one whose looks kill their worker stays parked.
    """
    others = [intent for intent in intents.intents() if intent.status == "running" and intent.source != SOURCE]
    return [emit(ServerUp(source=intent.source, data=intent.announcement)) for intent in others]


def running(config: Config) -> list[Running]:
    """Return the usable servers of a file; another command, environment or header is another trace.

    One that the file names and that cannot be used now, for a variable that is not set say, is not among them.
    """
    return [Running(announcement, config.targets.get(announcement.server_id)) for announcement in config.announcements]


def _by_id(running: Iterable[Running]) -> dict[str, Running]:
    """Return one of each id, the first: replicas of a server are one server."""
    by_id: dict[str, Running] = {}
    for server in running:
        by_id.setdefault(server.announcement.server_id, server)
    return by_id


def _agrees(intent: Intent | None, running: Running) -> bool:
    return intent is not None and intent.status == "running" and intent.announcement == running.announcement
