"""Watch an orchestrator: list the running servers at the start, after each change, and periodically.

The stream of changes only triggers a list. So a duplicate, late or lost event does no harm: the watcher also lists
after every reconnection and every RELIST_S seconds.
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
from workers.sources.announcer import Running, SourceAnnouncer
from workers.sources.metrics import SourceMetrics

# The longest delay of a change, also with a silently dead connection.
RELIST_S = 60.0
# Adds time for a source that is slow, or briefly unavailable.
READY_WITHIN_S = RELIST_S + 30.0
# A burst of changes causes one list; also the shortest time between two lists.
DEBOUNCE_S = 1.0
# A stream that lasted this long resets the backoff of reconnections.
GOOD_STREAM_S = 5.0

_log = structlog.get_logger()


class SourceUnavailable(Retryable):
    """An orchestrator did not answer, or its response was incomplete."""


class Source(Protocol):
    """A source of running servers. Both methods raise SourceUnavailable."""

    name: str

    def running(self) -> list[Running]:
        """Return all servers that are running."""
        ...

    def changes(self) -> Iterator[object]:
        """Yield once when connected, then after each possible change, until the connection ends."""
        ...


class Backoff:
    """Seconds to wait before a retry: doubling from `first_s` up to `longest_s`."""

    def __init__(self, first_s: float = 0.5, longest_s: float = 30.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the wait, and double the next one."""
        wait_s, self._next_s = self._next_s, min(self._longest_s, self._next_s * 2)
        return wait_s

    def reset(self) -> None:
        """Return to the first wait after a success."""
        self._next_s = self._first_s


class Watcher:
    """Announces the differences between a source and its intents until stopped; calls `beat` after each success."""

    def __init__(
        self,
        source: Source,
        announcer: SourceAnnouncer,
        *,
        beat: Callable[[], None] = lambda: None,
        metrics: SourceMetrics | None = None,
        relist_s: float = RELIST_S,
        debounce_s: float = DEBOUNCE_S,
        backoff_s: float = 0.5,
    ) -> None:
        self._source = source
        self._announcer = announcer
        self._beat = beat
        self._metrics = metrics or SourceMetrics()
        self._relist_s = relist_s
        self._debounce_s = debounce_s
        self._backoff_s = backoff_s
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._reported = ""

    def run(self) -> None:
        """Watch until `stop`; retry while the source or the intent store is unavailable."""
        threading.Thread(target=self._listen, name=f"toolscale {self._source.name}", daemon=True).start()
        backoff = Backoff(self._backoff_s)
        while not self._stopped.is_set():
            self._changed.clear()  # before the list: a change during the list triggers another one
            if self._announce():
                backoff.reset()
                self._changed.wait(self._relist_s)
                self._stopped.wait(self._debounce_s)
            else:
                self._stopped.wait(backoff.next_s())

    def stop(self) -> None:
        """Make `run` return soon. Safe to call from any thread."""
        self._stopped.set()
        self._changed.set()

    def _announce(self) -> bool:
        """List the source and announce the differences; return whether the intents now match the source."""
        try:
            emitted = self._announcer.announce_differences(self._source.running())
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
                if self._stopped.is_set():
                    return
                _log.debug("stream_lost", source=self._source.name, reason=str(error))
            if time.monotonic() - began >= GOOD_STREAM_S:
                backoff.reset()
            self._stopped.wait(backoff.next_s())

    def _consume_stream(self) -> None:
        """Trigger a list after each event, until the stream ends."""
        try:
            for number, _ in enumerate(self._source.changes()):
                if number == 0:
                    self._metrics.connected(self._source.name)
                self._changed.set()
        finally:
            self._metrics.disconnected(self._source.name)


class Announcements:
    """Reads announcements from labels and annotations; an invalid one is logged once and skipped."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def read(self, origin: str, data: dict[str, object]) -> ServerAnnouncement | None:
        """Return the announcement of these fields, None if they are invalid; `origin` names their object in the log."""
        try:
            return ServerAnnouncement.model_validate({key: value for key, value in data.items() if value is not None})
        except ValidationError as error:
            self.refuse(origin, error)
            return None

    def refuse(self, origin: str, error: ValidationError) -> None:
        """Log once that the object is invalid."""
        reason = first_problem(error, "server")
        if (origin, reason) not in self._reported:
            self._reported.add((origin, reason))
            _log.warning("server_not_announced", origin=origin, reason=reason)


def scoped(source: str, scope: str) -> str:
    """Return the name of a source with its scope, if it has one."""
    return f"{source}/{scope}" if scope else source


def names(text: str | None) -> list[str]:
    """Return the values of a label, separated by commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
