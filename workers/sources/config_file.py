"""Follow the operator's `mcp.json` while it is edited: read again when it changes, and only then.

It is looked at by its status, not by notifications: those miss changes on network file systems and in containers,
and a file that an editor replaces by renaming is another file to them.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import structlog

from shared.errors import ConfigInvalid, IntentsUnavailable
from workers.dial import Target
from workers.intents.contract import IntentStore
from workers.sources.following import Emit, Follower, running
from workers.sources.mcp_json import SOURCE, Config, read_config

_Signature = tuple[int, int, int] | None


class ConfigFile:
    """What the file says now. Cheap to ask, since an unchanged file is not read again. Safe from several threads."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self._environ = environ
        self._lock = threading.Lock()
        self._signature: _Signature = None
        self._found: Config | ConfigInvalid | None = None
        self._targets: dict[str, Target] = {}

    def config(self) -> Config:
        """Return what the file says; the same object as long as it does not change.

        Raises:
            ConfigInvalid: it cannot be used now.
        """
        with self._lock:
            found = self._current()
        if isinstance(found, ConfigInvalid):
            raise ConfigInvalid(str(found)) from found
        return found

    def get(self, server_id: str, /) -> Target | None:
        """Return where a server is dialled, None when the file does not name it.

        A server keeps the target it had while its entry, or the whole file, cannot be used.
        """
        with self._lock:
            self._current()
            return self._targets.get(server_id)

    def _current(self) -> Config | ConfigInvalid:
        signature = _signature(self.path)  # before the file is read: a change in between is seen the next time
        if self._found is None or signature != self._signature:
            self._found, self._signature = self._read(), signature
        return self._found

    def _read(self) -> Config | ConfigInvalid:
        try:
            config = read_config(self.path, self._environ)
        except ConfigInvalid as error:
            return error
        kept = {server_id: target for server_id, target in self._targets.items() if server_id in config.named}
        self._targets = kept | dict(config.targets)
        return config


class ConfigFollower:
    """Makes the catalogue follow the file: what it says is announced at the start and after each change.

    A file that cannot be used changes nothing, and is reported once.
    """

    def __init__(self, file: ConfigFile, intents: IntentStore, emit: Emit) -> None:
        self._file = file
        self._follower = Follower(SOURCE, intents, emit)
        self._followed: Config | None = None
        self._reported = ""

    def poll(self) -> None:
        """Act upon the file if it changed since; what fails now is done by the next call."""
        try:
            config = self._file.config()
            if config is not self._followed:
                self._follow(config)
        except (ConfigInvalid, IntentsUnavailable) as error:
            self._report(str(error))
        else:
            self._reported = ""

    def _follow(self, config: Config) -> None:
        self._follower.reconcile(running(config), config.named)
        before = self._followed.problems if self._followed else ()
        for problem in config.problems:
            if problem not in before:
                structlog.get_logger().warning("server_left_out", config=str(self._file.path), reason=problem)
        self._followed = config

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            structlog.get_logger().error("config_not_followed", config=str(self._file.path), reason=reason)
            self._reported = reason


@contextmanager
def following_config(follower: ConfigFollower, interval_s: float) -> Generator[None]:
    """Follow the file until the block ends, in a thread; its first look is done when the block begins."""
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(interval_s):
            follower.poll()

    follower.poll()
    thread = threading.Thread(target=poll, name="toolscale mcp.json", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=10)


def _signature(path: Path) -> _Signature:
    """Return what is different after every edit; a file that is replaced is another inode."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
