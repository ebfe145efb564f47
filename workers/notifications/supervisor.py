"""Listens to every server that should run, as the intents say now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup
from pydantic import ValidationError

from shared.catalog import Endpoint
from shared.errors import EventInvalid, IntentsUnavailable
from shared.events import ServerChanged, ServerRef
from shared.settings import Listen
from shared.upstream.dial import Configured, Dialler, StdioTarget, Target
from workers.intents.store import Intent, IntentStore
from workers.notifications.listener import USUAL, Listener, Neighbours, Pace, Room
from workers.notifications.metrics import ListeningMetrics
from workers.sources.reconcile import Emit

POLL_S = 2.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a server is: another endpoint, command or header means another connection."""

    endpoint: Endpoint
    configured: Target | None

    @property
    def is_stdio(self) -> bool:
        """Return whether a connection means that a child process runs."""
        return isinstance(self.configured, StdioTarget) or self.endpoint.transport == "stdio"


@dataclass(frozen=True, slots=True)
class Reach:
    """How servers are dialled, and which of them and how many are listened to."""

    configured: Configured
    dialler: Dialler
    listen: Listen
    most: int


class Fleet:
    """Keeps a listener for each server that runs, was listed, and does not kill its workers.

    What goes wrong with one server is its listener's affair. `beat` is called after each look at the intents.
    """

    def __init__(
        self,
        source: str,
        intents: IntentStore,
        emit: Emit,
        reach: Reach,
        *,
        beat: Callable[[], None] = lambda: None,
        metrics: ListeningMetrics | None = None,
        pace: Pace = USUAL,
        poll_s: float = POLL_S,
    ) -> None:
        self._source = source
        self._intents = intents
        self._emit = emit
        self._reach = reach
        self._beat = beat
        self._metrics = metrics or ListeningMetrics()
        self._pace = pace
        self._poll_s = poll_s
        self._commits = Commits()
        self._listening: dict[str, tuple[Whereabouts, anyio.CancelScope]] = {}
        self._reported = ""
        self._is_full = False

    async def run(self) -> None:
        """Follow the intents until cancelled."""
        room = Room(anyio.CapacityLimiter(self._reach.most))
        async with anyio.create_task_group() as tasks:
            while True:
                await self._follow(tasks, room)
                await anyio.sleep(self._poll_s)

    async def _follow(self, tasks: TaskGroup, room: Room) -> None:
        try:
            wanted = await anyio.to_thread.run_sync(self._wanted, abandon_on_cancel=True)
        except (IntentsUnavailable, ValidationError) as error:  # the latter: an intent that cannot be read
            self._report(str(error))
            return
        self._reported = ""
        for server_id, (where, scope) in list(self._listening.items()):
            if wanted.get(server_id) != where:
                scope.cancel()
                del self._listening[server_id]
        for server_id in wanted.keys() - self._listening.keys():
            self._begin(server_id, wanted[server_id], tasks, room)
        self._metrics.wanted(len(wanted))
        self._note_whether_full(len(wanted))
        self._beat()

    def _begin(self, server_id: str, where: Whereabouts, tasks: TaskGroup, room: Room) -> None:
        scope = anyio.CancelScope()
        self._listening[server_id] = (where, scope)
        neighbours = Neighbours(
            target=partial(self._reach.dialler.target, server_id, where.endpoint),
            was_just_listed=partial(self._commits.is_recent, server_id),
            ask=partial(self._ask, server_id),
        )
        listener = Listener(server_id, neighbours, room, self._pace, self._metrics)
        tasks.start_soon(self._listen, listener, server_id, scope)

    async def _listen(self, listener: Listener, server_id: str, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    await listener.run()
                except Exception as error:  # noqa: BLE001  # one server must not cost the others
                    _log.error("listening_failed", server=server_id, exc_info=error)
                await anyio.sleep(self._pace.unsupported_s)

    def _wanted(self) -> dict[str, Whereabouts]:
        """Return where each server is that is to be listened to."""
        intents = list(self._intents.intents())
        self._commits.note(intents)
        running = [intent for intent in intents if self._is_wanted(intent)]
        wanted = {
            intent.server_id: Whereabouts(intent.announcement.endpoint, self._reach.configured.get(intent.server_id))
            for intent in running
        }
        return {server_id: where for server_id, where in wanted.items() if self._is_heard(where)}

    def _is_wanted(self, intent: Intent) -> bool:
        if intent.status != "running" or _kills_workers(intent):
            return False
        # a server that cannot be listed cannot be listened to either; a connection that there is already is kept
        return intent.server_id in self._listening or (intent.committed > 0 and not intent.failures)

    def _is_heard(self, where: Whereabouts) -> bool:
        return self._reach.listen == "all" or (self._reach.listen == "http" and not where.is_stdio)

    async def _ask(self, server_id: str) -> bool:
        return await anyio.to_thread.run_sync(self._record_change, server_id, abandon_on_cancel=True)

    def _record_change(self, server_id: str) -> bool:
        """Return whether nothing more has to be done about a change."""
        try:
            intent = self._intents.intent(server_id)
            # an event may cost a worker before its time where a server kills them; a look that did not end comes anyway
            if intent is not None and not _kills_workers(intent):
                self._emit(ServerChanged(source=self._source, data=ServerRef(server_id=server_id)))
        except (EventInvalid, ValidationError):
            return True  # forgotten meanwhile, or of no use to anyone
        except IntentsUnavailable as error:
            self._report(str(error))
            return False
        return True

    def _note_whether_full(self, wanted: int) -> None:
        is_full = wanted > self._reach.most
        if is_full and not self._is_full:
            _log.warning("listening_full", servers=wanted, most=self._reach.most)
        self._is_full = is_full

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            _log.warning("listening_not_followed", reason=reason)
            self._reported = reason


def _kills_workers(intent: Intent) -> bool:
    return intent.parked or intent.is_suspect


RECENT_S = 30.0


class Commits:
    """When each server's committed generation was seen to rise. Safe to ask while it is brought up to date."""

    def __init__(self, recent_s: float = RECENT_S) -> None:
        self._recent_s = recent_s
        self._seen: dict[str, tuple[int, float]] = {}
        self._coming: frozenset[str] = frozenset()
        self._unknown_at = -math.inf  # of what is there at the first time, nobody knows since when

    def note(self, intents: Iterable[Intent]) -> None:
        """Compare all intents with those of the last time."""
        now, seen = time.monotonic(), dict[str, tuple[int, float]]()
        coming: set[str] = set()
        for intent in intents:
            committed, at = self._seen.get(intent.server_id, (intent.committed, self._unknown_at))
            seen[intent.server_id] = (intent.committed, at if committed == intent.committed else now)
            if intent.is_lagging:
                coming.add(intent.server_id)
        self._seen, self._coming, self._unknown_at = seen, frozenset(coming), now

    def is_recent(self, server_id: str) -> bool:
        """Return whether the server was listed just now, or is about to be."""
        _, at = self._seen.get(server_id, (0, -math.inf))
        return server_id in self._coming or time.monotonic() - at < self._recent_s
