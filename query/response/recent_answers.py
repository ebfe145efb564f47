"""Answers of `find_tool` that are sent again while no server has changed."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from query.response.find_response import FindResponse

MOST = 512
# A usual answer has less. This bounds the memory of all kept answers.
MAX_TOKENS = 8_000
# A repair of the index may change tools without the record of their server; a cursor expires much later.
KEEP_S = 30.0


class RecentAnswers:
    """The last answers in the present state of the catalogue, each for KEEP_S at most.

    Another state clears them. Safe to use from several threads.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._state: object = None
        self._kept: OrderedDict[Hashable, tuple[FindResponse, float]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, state: object) -> FindResponse | None:
        """Return the answer of this key if it was given in the same state of the catalogue."""
        with self._lock:
            self._enter(state)
            response, until_s = self._kept.get(key, (None, 0.0))
            if self._clock_s() >= until_s:
                self._kept.pop(key, None)
                return None
            self._kept.move_to_end(key)
            return response

    def keep(self, key: Hashable, state: object, response: FindResponse) -> None:
        """Keep an answer that names tools, unless it is very long; `state` is that of before the search."""
        if not (response.tools or response.nearest) or response.token_metrics.answer_tokens > MAX_TOKENS:
            return
        with self._lock:
            self._enter(state)
            self._kept[key] = response, self._clock_s() + KEEP_S
            self._kept.move_to_end(key)
            if len(self._kept) > MOST:
                self._kept.popitem(last=False)

    def _enter(self, state: object) -> None:
        """Forget the answers of another state, so that no earlier state stays in memory."""
        if state is not self._state:
            self._kept.clear()
            self._state = state
