"""Counts and records events in the background, without delaying answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from itertools import chain

import structlog

from query.history.recent_calls import RecentCalls
from query.history.store import Row, SavingsHistory, summed
from shared.errors import HistoryUnavailable

MAX_WAITING = 1_000
BATCH = 200
# Each write is a transaction: the events of so many seconds share the next one.
PAUSE_S = 0.25
# Limits the delay of shutdown by queued events and by a store that hangs.
CLOSE_S = 5.0

Event = Iterable[Row]
"""The rows of one fact. A generator counts when it is read, which is in the recorder's thread."""

_log = structlog.get_logger()


class UsageRecorder:
    """Counts events and writes their sums to a history in the background.

    A slow or failing history drops events, and delays no answer.
    """

    def __init__(
        self,
        history: SavingsHistory,
        max_waiting: int = MAX_WAITING,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.history = history
        self._pause_s = pause_s
        self.recent_calls = RecentCalls(history)
        self._waiting: queue.Queue[Event | None] = queue.Queue(max_waiting)
        self._dropped = 0
        self._is_failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write, name="toolscale savings", daemon=True)
        self._thread.start()

    def record(self, event: Event) -> None:
        """Queue an event. Returns at once and never raises, from any thread."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write queued events, within CLOSE_S seconds. Later events are not recorded."""
        self.recent_calls.close()
        self._closing.set()
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _write(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, is_last = self._batch(first)
            self._add(batch)
            if is_last:
                return
            self._closing.wait(self._pause_s)

    def _batch(self, first: Event) -> tuple[list[Event], bool]:
        """Return the first event with those queued behind it, and whether the queue is closed."""
        batch = [first]
        while len(batch) < BATCH:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                break
            if following is None:
                return batch, True
            batch.append(following)
        return batch, False

    def _add(self, batch: list[Event]) -> None:
        try:
            self.history.add(summed(chain.from_iterable(map(self._rows, batch))))
        except HistoryUnavailable as error:
            self._dropped += len(batch)
            if not self._is_failing:
                _log.warning("savings_write_failed", reason=str(error))
            self._is_failing = True
            return
        if self._dropped:
            _log.warning("savings_dropped", events=self._dropped)
        self._is_failing, self._dropped = False, 0

    def _rows(self, event: Event) -> list[Row]:
        """Return the rows of an event; one that cannot be counted is dropped, and the others are written."""
        try:
            return list(event)
        except BaseException as error:  # noqa: BLE001  # a panic of tiktoken's Rust side is no Exception
            self._dropped += 1
            _log.warning("savings_event_invalid", reason=repr(error))
            return []
