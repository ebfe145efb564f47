from __future__ import annotations

import threading

import anyio
import pytest

from query.tools.threads import MAX_THREADS, run_in_thread

pytestmark = pytest.mark.anyio


class Slow:
    """Answers when told to, and remembers in which order it was asked and how many were asked at the same time."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.full = threading.Semaphore(0)
        self.go = threading.Event()
        self._lock = threading.Lock()
        self._at_once = self.most_at_once = 0

    def answer(self, number: int) -> int:
        with self._lock:
            self.asked.append(number)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.full.release()
        assert self.go.wait(60)
        with self._lock:
            self._at_once -= 1
        return number


async def test_answers_are_made_a_few_at_a_time_for_whoever_came_first() -> None:
    slow, answers, asked_at_once = Slow(), list[int](), 0

    async def ask(number: int) -> None:
        answers.append(await run_in_thread(slow.answer, number))

    async with anyio.create_task_group() as callers:
        for number in range(5 * MAX_THREADS):
            callers.start_soon(ask, number)
            await anyio.lowlevel.checkpoint()
        for _ in range(MAX_THREADS):
            assert await anyio.to_thread.run_sync(slow.full.acquire, True, 10)
        asked_at_once = len(slow.asked)
        slow.go.set()

    assert asked_at_once == MAX_THREADS
    assert slow.most_at_once <= MAX_THREADS
    assert sorted(answers) == list(range(5 * MAX_THREADS))
    assert set(slow.asked[:MAX_THREADS]) == set(range(MAX_THREADS))


async def test_a_cancelled_wait_takes_no_slot() -> None:
    slow, waiting = Slow(), anyio.CancelScope()
    async with anyio.create_task_group() as callers:
        for number in range(MAX_THREADS):
            callers.start_soon(run_in_thread, slow.answer, number)
            await anyio.lowlevel.checkpoint()
        with waiting:
            callers.start_soon(_cancel, waiting)
            await run_in_thread(slow.answer, 99)
        slow.go.set()

    assert waiting.cancelled_caught
    assert 99 not in slow.asked
    assert await run_in_thread(slow.answer, 100) == 100


async def _cancel(scope: anyio.CancelScope) -> None:
    scope.cancel()
