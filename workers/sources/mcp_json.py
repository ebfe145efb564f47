"""Announce the servers of the operator's `mcp.json`, and take down those that it no longer contains."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import structlog

from shared.errors import ConfigInvalid, IntentsUnavailable
from shared.service.repeated import repeated
from shared.upstream.config_file import ConfigFile
from shared.upstream.mcp_json import SOURCE, Config
from workers.intents.store import IntentStore
from workers.sources.announcer import Emit, SourceAnnouncer, running
from workers.sources.metrics import SourceMetrics

RECHECK_S = 30.0
# A poll reads the file's status only, and an edit should show while its author still watches.
POLL_S = 1.0


class ConfigFollower:
    """Announces the servers of the file at the start and after each change of the file.

    An invalid file changes nothing and is logged once. Every `recheck_s` seconds, servers that the file does not name
    are taken down again: intents that were restored from the index may contain old servers.
    """

    def __init__(
        self,
        file: ConfigFile,
        intents: IntentStore,
        emit: Emit,
        metrics: SourceMetrics | None = None,
        *,
        recheck_s: float = RECHECK_S,
    ) -> None:
        self._file = file
        self._metrics = metrics or SourceMetrics()
        self._announcer = SourceAnnouncer(SOURCE, intents, emit)
        self._recheck_s = recheck_s
        self._checked_at = 0.0
        self._announced: Config | None = None
        self._reported = ""

    def poll(self) -> None:
        """Announce the differences if the file changed; the next call retries after a failure."""
        try:
            config = self._file.config()
            if config is not self._announced:
                self._announce(config)
            elif time.monotonic() - self._checked_at >= self._recheck_s:
                self._announcer.take_down_all_but(config.named)
                self._checked_at = time.monotonic()
        except (ConfigInvalid, IntentsUnavailable) as error:
            self._metrics.listed(SOURCE, "failed")
            self._report(str(error))
        else:
            self._metrics.listed(SOURCE, "reconciled")
            self._reported = ""

    def _announce(self, config: Config) -> None:
        self._announcer.announce_differences(running(config), config.named)
        before = self._announced.problems if self._announced else ()
        for problem in config.problems:
            if problem not in before:
                structlog.get_logger().warning("config_entry_skipped", config=str(self._file.path), reason=problem)
        self._announced, self._checked_at = config, time.monotonic()

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            structlog.get_logger().error("config_reconcile_failed", config=str(self._file.path), reason=reason)
            self._reported = reason


@contextmanager
def config_followed(follower: ConfigFollower, interval_s: float = POLL_S) -> Generator[None]:
    """Poll the file now, and then in a thread until the block ends."""
    follower.poll()
    with repeated(follower.poll, interval_s, "toolscale mcp.json"):
        yield
