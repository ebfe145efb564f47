"""Turns of the threads that read the catalogue: a few at a time, shared by the callers that wait.

A request of many parts calls `give_way` between them, so that it delays others by one part at most.
Two limiters, of all callers and of each, would do less: a caller that is alone has all turns, callers that wait get
them in rotation, and a begun request keeps its thread while others have its turn.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import anyio.from_thread
import anyio.to_thread
from anyio import CapacityLimiter

from shared.errors import CallsExhausted

# One for each core. More threads compete for the interpreter: with 40, 50 clients waited longer and got fewer responses
# a second.
MOST = min(max(os.cpu_count() or 1, 2), 8)
# A request waits for a Qdrant server three times, and others use the cores meanwhile. Beside other callers, none gets
# more turns than on Edge: with half of these, a heavy caller delayed a light one fivefold in place of twofold.
MOST_ON_A_SERVER = 4 * MOST
# Threads that wait between two parts of a request, over all callers.
MOST_PAUSED = 64
# Requests of one caller that wait for their first turn: one of each client over stdio, who all are the operator.
MOST_WAITING = 256
# Seconds after its last turn in which a caller counts as active. A caller that is alone uses all turns.
ACTIVE_S = 60.0

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Turns:
    """At most `most` turns at a time; waiting callers get them in rotation. Safe to use from several threads.

    While several callers are active, each has at most all but one of the turns that the constructor gets, and the last
    free turn is for a caller that has none. Between two turns of one caller, each other caller that waits and has none
    gets one.
    """

    def __init__(
        self, most: int = MOST, clock_s: Callable[[], float] = time.monotonic, most_waiting: int = MOST_WAITING
    ) -> None:
        """Each caller may have `most_waiting` requests that wait for their first turn."""
        self._most = self._free = most
        self._of_one = max(most - 1, 1)
        self._most_waiting = most_waiting
        self._clock_s = clock_s
        self._latest: str | None = None
        self._is_shared_until_s = 0.0
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[Future[None]]] = {}
        self._paused = 0
        self._lock = threading.Lock()

    def allow(self, most: int) -> None:
        """Change how many turns there are at a time; begun ones continue, and the limit beside other callers stays."""
        with self._lock:
            self._free += most - self._most
            self._most = most
            self._grant()

    @asynccontextmanager
    async def turn(self, caller: str, *, is_first: bool = True) -> AsyncGenerator[None]:
        """Wait for a turn of this caller, after its earlier requests, and keep it for the block.

        A further turn of a request comes before the first turns of others, and is never refused.

        Raises:
            CallsExhausted: too many requests of this caller wait for their first turn.
        """
        granted = Future[None]()
        with self._lock:
            if is_first:
                self._append(caller, granted)
            else:
                self._waiting.setdefault(caller, deque()).appendleft(granted)
            self._grant()
        try:
            if not granted.done():  # waiting wakes the event loop once more
                await asyncio.wrap_future(granted)
            yield
        finally:
            if not granted.cancel():
                self._release(caller)

    def _append(self, caller: str, granted: Future[None]) -> None:
        waiting = deque(request for request in self._waiting.get(caller, ()) if not request.cancelled())
        if len(waiting) >= self._most_waiting:
            limit = f"{caller} has {len(waiting)} waiting requests, as many as the limit per caller allows"
            raise CallsExhausted(f"{limit}; call again in a few seconds")
        waiting.append(granted)
        self._waiting[caller] = waiting

    def give_way(self, caller: str) -> None:
        """Pass the turn of this caller to the next one that waits, and block until it has a turn again."""
        granted = Future[None]()
        with self._lock:
            if self._paused >= MOST_PAUSED:
                return
            self._paused += 1
            # begun requests first: they hold memory and a thread
            self._waiting.setdefault(caller, deque()).appendleft(granted)
        self._release(caller)
        granted.result()
        with self._lock:
            self._paused -= 1

    def _release(self, caller: str) -> None:
        with self._lock:
            self._free += 1
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]
            self._grant()

    def _grant(self) -> None:
        """Grant the free turns; each caller that gets one moves to the end of the rotation."""
        while (caller := next(filter(self._may_take, self._waiting), None)) is not None:
            requests = self._waiting.pop(caller)
            while requests:
                granted = requests.popleft()
                if granted.set_running_or_notify_cancel():  # else its request was cancelled
                    self._take(caller)
                    granted.set_result(None)
                    break
            if requests:
                self._waiting[caller] = requests

    def _take(self, caller: str) -> None:
        self._free -= 1
        self._taken[caller] += 1
        if self._latest not in (None, caller):
            self._is_shared_until_s = self._clock_s() + ACTIVE_S
        self._latest = caller

    def _may_take(self, caller: str) -> bool:
        taken = self._taken[caller]
        if not taken or self._clock_s() >= self._is_shared_until_s:
            return self._free > 0
        return self._free > 1 and taken < self._of_one


_turns = Turns()
_caller: ContextVar[str | None] = ContextVar("caller of the thread's turn", default=None)
_began_at_s: ContextVar[float | None] = ContextVar("beginning of the thread's request", default=None)


def allow_turns(*, index_is_embedded: bool) -> None:
    """Allow this process as many turns as keep its cores busy with such an index."""
    _turns.allow(MOST if index_is_embedded else MOST_ON_A_SERVER)


async def run_in_thread(caller: str, read: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Return the result of `read`, called in a thread in a turn of this caller; cancellation ends it at `give_way`.

    Raises:
        CallsExhausted: from `Turns.turn`.
    """
    with _begun():
        async with _turns.turn(caller):
            return await _in_thread(caller, read, *arguments)


async def continue_in_thread(caller: str, read: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Return the result of `read` as `run_in_thread` does, for a request that is never refused: it had a turn."""
    with _begun():
        async with _turns.turn(caller, is_first=False):
            return await _in_thread(caller, read, *arguments)


async def _in_thread(caller: str, read: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    token = _caller.set(caller)
    try:
        # the turns limit the threads
        return await anyio.to_thread.run_sync(read, *arguments, limiter=CapacityLimiter(1))
    finally:
        _caller.reset(token)


@contextmanager
def _begun() -> Generator[None]:
    token = _began_at_s.set(time.monotonic())
    try:
        yield
    finally:
        _began_at_s.reset(token)


def began_at_s() -> float | None:
    """Return when this thread's request began to wait for its turn, by the monotonic clock; None without a turn."""
    return _began_at_s.get()


def give_way() -> None:
    """Let other callers take this thread's turn, between two parts of a request; nothing without a turn.

    Raises the event loop's cancellation if the request was cancelled.
    """
    if (caller := _caller.get()) is not None:
        anyio.from_thread.check_cancelled()
        _turns.give_way(caller)
