"""Announce the servers of the operator's `mcp.json`, and take down those that it no longer contains."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import structlog
from prometheus_client import Gauge

from shared.errors import ConfigInvalid, FollowedConfigUnavailable, IntentsUnavailable
from shared.intents.intents import Intents
from shared.service.every import every
from shared.upstream.followed_config import FollowedConfig, FollowedConfigStore
from shared.upstream.mcp_json import SOURCE, Config, ConfigFile
from workers.sources.announcer import RECONCILED_AT, Emit, SourceAnnouncer, running

ENTRIES_LEFT_OUT = Gauge("toolscale_entries_left_out", "Entries of the followed mcp.json that cannot be used.")

RECHECK_S = 30.0
# A poll reads the file's status only, and an edit should show while its author still watches.
POLL_S = 1.0

_log = structlog.get_logger()


class ConfigFollower:
    """Announces the servers of the file at the start and after each change of the file.

    An invalid file changes nothing and is logged once. Every `recheck_s` seconds, servers that the file does not name
    are taken down again, and servers without an intent of the file are announced: the store may have lost intents, and
    those that were restored from the index may contain old servers.
    `store` gets the state of the file after each change, and again every `recheck_s` seconds.
    """

    def __init__(
        self,
        file: ConfigFile,
        intents: Intents,
        emit: Emit,
        store: FollowedConfigStore,
        *,
        recheck_s: float = RECHECK_S,
    ) -> None:
        self._file = file
        self._reconciled_at = RECONCILED_AT.labels(SOURCE)
        self._reconciled_at.set_to_current_time()
        self._announcer = SourceAnnouncer(SOURCE, intents, emit)
        self._recheck_s = recheck_s
        self._checked_at = 0.0
        self._announced: Config | None = None
        self._reported = ""
        self._store = store
        self._stored: FollowedConfig | None = None
        self._stored_at = 0.0

    @property
    def state(self) -> FollowedConfig | None:
        """Return the state of the file at the last poll, None before the first."""
        return self._stored

    def poll(self) -> None:
        """Announce the differences if the file changed; the next call retries after a failure."""
        problem: str | None = None
        try:
            config = self._file.config()
            if config is not self._announced:
                self._announce(config)
            elif time.monotonic() - self._checked_at >= self._recheck_s:
                self._announcer.recheck(running(config), config.named)
                self._checked_at = time.monotonic()
        except (ConfigInvalid, IntentsUnavailable) as error:
            problem = str(error) if isinstance(error, ConfigInvalid) else None
            if str(error) != self._reported:
                _log.error("config_reconcile_failed", config=str(self._file.path), reason=str(error))
                self._reported = str(error)
        else:
            self._reconciled_at.set_to_current_time()
            self._reported = ""
        self._store_state(problem)

    def _announce(self, config: Config) -> None:
        ENTRIES_LEFT_OUT.set(len(config.problems))
        self._announcer.announce_differences(running(config), config.named)
        before = self._announced.problems if self._announced else ()
        for problem in config.problems:
            if problem not in before:
                _log.warning("config_entry_skipped", config=str(self._file.path), reason=str(problem))
        if config.repeated:
            _log.warning("config_keys_repeated", config=str(self._file.path), keys=config.repeated)
        self._announced, self._checked_at = config, time.monotonic()

    def _store_state(self, problem: str | None) -> None:
        config = self._announced or Config()
        state = FollowedConfig(
            path=str(self._file.path.resolve()),
            servers=len(config.announcements),
            left_out=config.problems,
            switched_off=len(config.switched_off),
            repeated=config.repeated,
            problem=problem,
        )
        if state == self._stored and time.monotonic() - self._stored_at < self._recheck_s:
            return
        try:
            self._store.put(state)
        except FollowedConfigUnavailable as error:
            _log.warning("followed_config_not_stored", reason=str(error))
        self._stored, self._stored_at = state, time.monotonic()  # after a failure too: the next attempt can wait


@contextmanager
def config_followed(follower: ConfigFollower, interval_s: float = POLL_S) -> Generator[None]:
    """Poll the file now, and then in a thread until the block ends."""
    follower.poll()
    with every(interval_s, follower.poll, "config_reconcile_failed", first_after_s=interval_s):
        yield
