"""The embedded composition: workers and query service in one process, without other services.

Celery runs on its in-memory broker with a worker thread. The index and the intents are in the data directory.
Recorded events survive a kill; messages do not, and the sweep sends them again.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from celery import Celery
from celery.worker import WorkController

from shared.errors import FollowedConfigUnavailable
from shared.events import ServerEvent
from shared.index.versions import IndexVersions
from shared.intents.intent import Intent
from shared.intents.intents import open_intents
from shared.memory import return_freed_memory_early
from shared.service.every import every
from shared.service.protection import full_environment
from shared.settings import Settings
from shared.upstream.config_file import ConfigFile
from shared.upstream.followed_config import followed_config_store
from shared.upstream.mcp_json import Config
from toolscale.client.emit import EmitResult, emit_result
from workers.celery_app import build_app
from workers.dependencies import Dependencies, open_dependencies
from workers.emit import Emitter
from workers.fetch.interrupt import interrupt_fetches
from workers.maintenance.audit import AuditRounds
from workers.maintenance.rebuild import maintain_index, rebuild_if_lost
from workers.maintenance.restore import restore_if_lost
from workers.monitoring.checks import Deadline, HealthCheck
from workers.monitoring.embedded import progress_checked
from workers.sources.announcer import announce_again, announce_config
from workers.sources.mcp_json import ConfigFollower, config_followed
from workers.tasks import SWEEP_LIMIT, send_migrate, send_reconcile

# A sweep runs each second; on a busy disk it may take longer without being unhealthy.
SWEPT_WITHIN_S = 20.0

_INTERRUPT_EVERY_S = 0.05
_LOOP_END_S = 0.1


@dataclass(frozen=True)
class Embedded:
    """A running worker and the objects that it shares with the query service."""

    settings: Settings
    deps: Dependencies
    app: Celery
    checks: Mapping[str, HealthCheck]
    """Health checks of the ingestion by name."""
    emitted: dict[str, EmitResult] = field(default_factory=dict[str, "EmitResult"])
    """The last event of this process for each server, as recorded before its reconciliation."""

    @property
    def versions(self) -> IndexVersions:
        """Return the index versions, which workers and query service share."""
        assert self.deps.versions  # open_dependencies opens them
        return self.deps.versions

    def emit(self, event: ServerEvent) -> Intent:
        """Record an event and send its message to the worker thread."""
        due_in_s = self.settings.redeliver_after_s
        intent = Emitter(self.deps.intents, self.enqueue, due_in_s).emit(event)
        self.emitted[intent.server_id] = emit_result(intent, message_sent=True)
        return intent

    def enqueue(self, server_id: str) -> None:
        """Send a reconcile message to the worker thread; the broker in memory never blocks."""
        send_reconcile(self.app, server_id)

    def announce(self, config: Config) -> list[Intent]:
        """Record the servers of the operator's file, and announce every other running server again."""
        return announce_config(config, self.deps.intents, self.emit)

    @contextmanager
    def following(self, path: Path) -> Generator[None]:
        """Follow changes of the operator's file until the block ends.

        Every other running server is announced again: it may have changed while this process was stopped.
        """
        announce_again(self.deps.intents, self.emit)
        with closing(followed_config_store(self.settings)) as store:
            file = ConfigFile(path, full_environment())
            follower = ConfigFollower(file, self.deps.intents, self.emit, store)
            try:
                with config_followed(follower):
                    yield
            finally:
                with suppress(FollowedConfigUnavailable):  # then it expires
                    store.clear()


@contextmanager
def run_embedded(settings: Settings) -> Generator[Embedded]:
    """Run a worker thread and the sweep until the block ends.

    At the end writes are completed. Reconciliations that wait for a server are interrupted; the next start
    repeats them.

    Raises:
        ConfigInvalid: another process uses the data directory.
    """
    return_freed_memory_early()
    with closing(open_intents(settings)) as intents, closing(open_dependencies(settings, intents)) as opened:
        # reconciliations that compute side by side slow searches in this process
        deps = replace(opened, computing=threading.Lock())
        intents.clear_pending_messages()
        assert deps.versions  # open_dependencies opens them
        rebuild_if_lost(deps.versions, intents)
        if settings.redis_url:
            from workers.broker import keep_refused_messages  # noqa: PLC0415  # loads the Redis client

            keep_refused_messages(lambda: intents)
        app = build_app(settings, deps)
        app.set_default()  # without it the pool's threads would use Celery's default app
        with (
            _worker(app, settings) as worker,
            progress_checked(app, worker, settings) as tasks,
            _sweeper(app, deps, min(1.0, settings.sweep_interval_s)) as swept,
        ):
            yield Embedded(settings, deps, app, {"tasks": tasks, "sweep": swept.problem})


@contextmanager
def _worker(app: Celery, settings: Settings) -> Generator[threading.Thread]:
    worker = WorkController(
        app=app,
        hostname="toolscale@localhost",
        pool="threads",
        concurrency=settings.worker_concurrency,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    thread = threading.Thread(target=worker.start, name="toolscale worker", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        _stop(worker)
        # the pool has ended and the connection is closed, but Celery's idle loop sleeps up to 2 s
        thread.join(timeout=_LOOP_END_S)


def _stop(worker: WorkController) -> None:
    stopping = threading.Thread(target=worker.stop, name="toolscale worker's end", daemon=True)
    stopping.start()
    while stopping.is_alive():
        interrupt_fetches()  # repeatedly: queued tasks start when others end
        stopping.join(timeout=_INTERRUPT_EVERY_S)


@contextmanager
def _sweeper(app: Celery, deps: Dependencies, interval_s: float) -> Generator[Deadline]:
    """Send messages for due intents, also for those of `toolscale emit` in another process."""
    swept = Deadline(SWEPT_WITHIN_S)
    audits = AuditRounds(interval_s)

    def sweep() -> None:
        restore_if_lost(deps.intents, deps.index)
        due = deps.intents.claim_due(SWEEP_LIMIT)
        for server_id in due:
            send_reconcile(app, server_id)
        if deps.rollout:
            deps.rollout.request_once()
        if deps.versions:
            maintain_index(deps.versions, deps.intents, partial(send_migrate, app), audits)
        swept.touch()

    with every(interval_s, sweep, "sweep_failed", first_after_s=interval_s):
        yield swept
