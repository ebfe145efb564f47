"""The embedded composition: workers and query service in one process, without other services.

Reconciliations run in a pool of threads. The index and the intents are in the data directory. Recorded events survive
a kill; requests to the pool do not, and the sweep makes them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigInvalid, FollowedConfigUnavailable
from shared.events import ServerEvent
from shared.index.versions import IndexVersions
from shared.intents import times
from shared.intents.intent import Intent
from shared.intents.intents import open_intents
from shared.service.every import every
from shared.service.process import full_environment, return_freed_memory_early
from shared.settings import Settings
from shared.upstream.followed_config import followed_config_store
from shared.upstream.mcp_json import Config, ConfigFile
from workers.dependencies import Dependencies, open_dependencies
from workers.emit import Emitter
from workers.monitoring.checks import Deadline, HealthCheck
from workers.sources.announcer import announce_again, announce_config
from workers.sources.mcp_json import ConfigFollower, config_followed
from workers.upkeep.recover import rebuild_if_lost
from workers.work import ReconcilePool, Work, longest_listing_s

if TYPE_CHECKING:
    from workers.fetch.lister import Share

# Events of `toolscale emit` in another process wait for a sweep.
SWEEP_INTERVAL_S = 1.0
# On a busy disk a sweep may take longer without being unhealthy.
SWEPT_WITHIN_S = 20.0


@dataclass(frozen=True)
class Embedded:
    """The running ingestion, and the objects that it shares with the query service."""

    settings: Settings
    deps: Dependencies
    wake: Callable[[str], None]
    """Requests a reconciliation of a server from the pool."""
    checks: Mapping[str, HealthCheck]
    """Health checks of the ingestion by name."""
    emitted: dict[str, Intent] = field(default_factory=dict[str, Intent])
    """The intent of each server after the last event of this process, before its reconciliation."""

    @property
    def versions(self) -> IndexVersions:
        """Return the index versions, which workers and query service share."""
        assert self.deps.versions  # open_dependencies opens them
        return self.deps.versions

    def emit(self, event: ServerEvent) -> Intent:
        """Record an event and request the reconciliation."""
        intent = Emitter(self.deps.intents, self.wake, times.REDELIVER_AFTER_S).emit(event)
        self.emitted[intent.server_id] = intent
        return intent

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
def run_embedded(settings: Settings, share: Share | None = None) -> Generator[Embedded]:
    """Run the reconciliations and the sweep until the block ends. `share` is for the lister.

    At the end writes are completed. Reconciliations that wait for a server are interrupted; the next start
    repeats them.

    Raises:
        ConfigInvalid: another process uses the data directory, or REDIS_URL is set.
    """
    if settings.redis_url:
        raise ConfigInvalid("REDIS_URL is set, for services with workers of their own; unset it for `toolscale serve`")
    return_freed_memory_early()
    with closing(open_intents(settings)) as intents, closing(open_dependencies(settings, intents, share)) as opened:
        # reconciliations that compute side by side slow searches in this process
        deps = replace(opened, computing=threading.Lock())
        intents.clear_pending_messages()
        assert deps.versions  # open_dependencies opens them
        rebuild_if_lost(deps.versions, intents)
        pool = ReconcilePool(settings.worker_concurrency, lambda server_id: work.reconcile(server_id))
        work = Work(
            *(lambda: intents, lambda: deps, pool.wake, pool.waiting),
            message_time_s=times.REDELIVER_AFTER_S,
            sweep_interval_s=SWEEP_INTERVAL_S,
        )
        with (
            closing(pool),
            pool.progress_checked(longest_listing_s(settings)) as tasks,
            _sweeping(work, deps) as swept,
        ):
            yield Embedded(settings, deps, pool.wake, {"tasks": tasks, "sweep": swept.problem})


@contextmanager
def _sweeping(work: Work, deps: Dependencies) -> Generator[Deadline]:
    """Sweep, also for events of `toolscale emit` in another process, and maintain the index beside that."""
    swept = Deadline(SWEPT_WITHIN_S)

    def sweep() -> None:
        work.sweep()
        swept.touch()

    def maintain() -> None:
        assert deps.rollout  # open_dependencies makes it
        deps.rollout.request_once()
        work.maintain()

    with (
        every(SWEEP_INTERVAL_S, sweep, "sweep_failed", first_after_s=SWEEP_INTERVAL_S),
        every(SWEEP_INTERVAL_S, maintain, "maintenance_failed", first_after_s=SWEEP_INTERVAL_S),
    ):
        yield swept
