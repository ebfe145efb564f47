"""Watch an orchestrator: list what runs, follow it, and list again whenever something may have changed.

Its stream of changes is only a hint that it is time to list. So an event that comes twice, late or never does no
harm: it is listed at the start, after every reconnection, after each change, and from time to time anyway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import structlog
from pydantic import ValidationError

from shared.errors import EventInvalid, IntentsUnavailable, Retryable
from shared.events import ServerAnnouncement
from shared.validation import first_problem
from workers.sources.metrics import SourceMetrics
from workers.sources.reconcile import Running, SourceReconciler

# Even with a connection that is silently dead, a change is seen within this time.
RELIST_S = 60.0
# Beyond it: what a source that is slow, or away for a moment, may take.
READY_WITHIN_S = RELIST_S + 30.0
# A stream that lived this long was a good one: the next reconnection need not wait for long.
GOOD_STREAM_S = 5.0

_log = structlog.get_logger()


class SourceUnavailable(Retryable):
    """An orchestrator did not answer, or its answer broke off."""


class Source(Protocol):
    """What knows which servers run. Both methods raise SourceUnavailable."""

    name: str

    def running(self) -> list[Running]:
        """Return all servers that run now."""
        ...

    def changes(self) -> Iterator[object]:
        """Yield once when connected, then whenever something may have changed, until the connection ends."""
        ...


class Backoff:
    """Seconds to wait before trying again: doubling from `first_s` up to `longest_s`."""

    def __init__(self, first_s: float = 0.5, longest_s: float = 30.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the wait, and double the one after."""
        wait_s, self._next_s = self._next_s, min(self._longest_s, self._next_s * 2)
        return wait_s

    def reset(self) -> None:
        """Begin anew after a success."""
        self._next_s = self._first_s


class Watcher:
    """Keeps the intents of a source equal to what it lists, until stopped; `beat` is called each time that they are."""

    def __init__(
        self,
        source: Source,
        reconciler: SourceReconciler,
        *,
        beat: Callable[[], None] = lambda: None,
        metrics: SourceMetrics | None = None,
        relist_s: float = RELIST_S,
        backoff_s: float = 0.5,
    ) -> None:
        self._source = source
        self._reconciler = reconciler
        self._beat = beat
        self._metrics = metrics or SourceMetrics()
        self._relist_s = relist_s
        self._backoff_s = backoff_s
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._reported = ""

    def run(self) -> None:
        """Watch until `stop`; a source or a store that is away for a while is waited for."""
        threading.Thread(target=self._listen, name=f"toolscale {self._source.name}", daemon=True).start()
        backoff = Backoff(self._backoff_s)
        while not self._stopped.is_set():
            self._changed.clear()  # before listing: a change that comes meanwhile is listed once more
            if self._reconcile():
                backoff.reset()
                self._changed.wait(self._relist_s)
            else:
                self._stopped.wait(backoff.next_s())

    def stop(self) -> None:
        """Let `run` end soon. Safe to call from any thread."""
        self._stopped.set()
        self._changed.set()

    def _reconcile(self) -> bool:
        """Return whether what runs is now what the intents say."""
        try:
            emitted = self._reconciler.reconcile(self._source.running())
        except (SourceUnavailable, IntentsUnavailable, EventInvalid) as error:
            self._metrics.listed(self._source.name, "failed")
            self._report(str(error))
            return False
        self._metrics.listed(self._source.name, "reconciled")
        self._reported = ""
        if emitted:
            _log.info("source_reconciled", source=self._source.name, events=len(emitted))
        self._beat()
        return True

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            _log.warning("source_reconcile_failed", source=self._source.name, reason=reason)
            self._reported = reason

    def _listen(self) -> None:
        backoff = Backoff(self._backoff_s)
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._consume_stream()
            except SourceUnavailable as error:
                _log.debug("stream_lost", source=self._source.name, reason=str(error))
            if time.monotonic() - began >= GOOD_STREAM_S:
                backoff.reset()
            self._stopped.wait(backoff.next_s())

    def _consume_stream(self) -> None:
        """Have what runs listed whenever it may have changed, until the stream ends."""
        try:
            for number, _ in enumerate(self._source.changes()):
                if number == 0:
                    self._metrics.connected(self._source.name)
                self._changed.set()
        finally:
            self._metrics.disconnected(self._source.name)


class Announcements:
    """Reads announcements off labels and annotations; one that cannot be used is reported once, and left out."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def read(self, origin: str, data: dict[str, object]) -> ServerAnnouncement | None:
        """Return the announcement that these fields make, None when they make none; `of` names whose they are."""
        try:
            return ServerAnnouncement.model_validate({key: value for key, value in data.items() if value is not None})
        except ValidationError as error:
            self.refuse(origin, error)
            return None

    def refuse(self, origin: str, error: ValidationError) -> None:
        """Report once that this makes no server."""
        reason = first_problem(error, "server")
        if (origin, reason) not in self._reported:
            self._reported.add((origin, reason))
            _log.warning("server_not_announced", origin=origin, reason=reason)


def scoped(source: str, scope: str) -> str:
    """Return the name of a source among several of its kind; the only one needs no scope."""
    return f"{source}/{scope}" if scope else source


def names(text: str | None) -> list[str]:
    """Return what is listed in a label, separated by commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
