"""Records answers and calls in the background, without delaying them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable

import structlog

from query.caller import Caller
from query.history.periods import today
from query.history.store import AnswerEvent, CallEvent, SavingsHistory, SearchEvent, UsageEvent
from query.response.find_response import FindResponse, FoundTool
from query.response.stats import SearchStats
from shared.errors import HistoryUnavailable

MAX_WAITING = 1_000
BATCH = 200
# Limits the delay of shutdown by queued events and by a store that hangs.
CLOSE_S = 5.0

_log = structlog.get_logger()


class UsageRecorder:
    """Writes events to a history in the background; a slow or failing history drops events, and delays no answer."""

    def __init__(self, history: SavingsHistory, max_waiting: int = MAX_WAITING) -> None:
        self.history = history
        self._waiting: queue.Queue[UsageEvent | None] = queue.Queue(max_waiting)
        self._dropped = 0
        self._is_failing = False
        self._thread = threading.Thread(target=self._write, name="toolscale savings", daemon=True)
        self._thread.start()

    def record(self, event: UsageEvent) -> None:
        """Queue an answer or a call. Returns at once and never raises, from any thread."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write queued events, within CLOSE_S seconds. Later events are not recorded."""
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

    def _batch(self, first: UsageEvent) -> tuple[list[UsageEvent], bool]:
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

    def _add(self, batch: list[UsageEvent]) -> None:
        try:
            self.history.add(batch)
        except HistoryUnavailable as error:
            self._dropped += len(batch)
            if not self._is_failing:
                _log.warning("savings_write_failed", reason=str(error))
            self._is_failing = True
            return
        if self._dropped:
            _log.warning("savings_dropped", answers=self._dropped)
        self._is_failing, self._dropped = False, 0


def search_event(
    response: FindResponse, stats: SearchStats, caller: Caller, own_tokens: int, *, is_new: bool
) -> AnswerEvent:
    """Return the event of a `find_tool` answer; a further page counts as returned, not as a search."""
    metrics = response.token_metrics
    saved = stats.saved_by_server(metrics.tokens_saved)
    search = SearchEvent(metrics.baseline_tokens, stats.baseline.tools, own_tokens, metrics.tokens_saved, saved)
    tools, returned = _tools(response.tools), metrics.returned_tokens
    return AnswerEvent(today(), caller.name, tools, returned, search if is_new else None, stats.shown_tokens)


def description_event(tools: Iterable[FoundTool], caller: Caller) -> AnswerEvent:
    """Return the event of a `describe_tool` answer."""
    shown = _tools(tools)
    return AnswerEvent(today(), caller.name, shown, sum(shown.values()))


def call_event(caller: str, server: str, tool: str, response_bytes: int, *, is_failed: bool) -> CallEvent:
    """Return the event of a call, for today."""
    return CallEvent(today(), caller, server, tool, response_bytes, is_failed)


def _tools(tools: Iterable[FoundTool]) -> dict[tuple[str, str], int]:
    return {(tool.server, tool.name): tool.token_count or 0 for tool in tools}
