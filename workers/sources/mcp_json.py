"""The catalogue follows the operator's `mcp.json`: what the file says is announced, what it drops is taken down."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import structlog

from shared.errors import ConfigInvalid, IntentsUnavailable
from shared.upstream.config_file import ConfigFile
from shared.upstream.mcp_json import SOURCE, Config
from workers.intents.store import IntentStore
from workers.sources.metrics import SourceMetrics
from workers.sources.reconcile import Emit, SourceReconciler, running

RECHECK_S = 30.0
# A poll reads the file's status only, and an edit should show while its author still watches.
POLL_S = 1.0


class ConfigReconciler:
    """Makes the catalogue follow the file: what it says is announced at the start and after each change.

    A file that cannot be used changes nothing, and is reported once. Every `recheck_s` seconds what the file does not
    name is taken down again: intents that were restored from the index may remember what it said long ago.
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
        self._reconciler = SourceReconciler(SOURCE, intents, emit)
        self._recheck_s = recheck_s
        self._checked_at = 0.0
        self._reconciled: Config | None = None
        self._reported = ""

    def poll(self) -> None:
        """Act upon the file if it changed since; what fails now is done by the next call."""
        try:
            config = self._file.config()
            if config is not self._reconciled:
                self._reconcile(config)
            elif time.monotonic() - self._checked_at >= self._recheck_s:
                self._reconciler.take_down_all_but(config.named)
                self._checked_at = time.monotonic()
        except (ConfigInvalid, IntentsUnavailable) as error:
            self._metrics.listed(SOURCE, "failed")
            self._report(str(error))
        else:
            self._metrics.listed(SOURCE, "reconciled")
            self._reported = ""

    def _reconcile(self, config: Config) -> None:
        self._reconciler.reconcile(running(config), config.named)
        before = self._reconciled.problems if self._reconciled else ()
        for problem in config.problems:
            if problem not in before:
                structlog.get_logger().warning("config_entry_skipped", config=str(self._file.path), reason=problem)
        self._reconciled, self._checked_at = config, time.monotonic()

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            structlog.get_logger().error("config_reconcile_failed", config=str(self._file.path), reason=reason)
            self._reported = reason


@contextmanager
def config_reconciled(reconciler: ConfigReconciler, interval_s: float = POLL_S) -> Generator[None]:
    """Follow the file until the block ends, in a thread; its first look is done when the block begins."""
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(interval_s):
            reconciler.poll()

    reconciler.poll()
    thread = threading.Thread(target=poll, name="toolscale mcp.json", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=10)
