from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest

from query.__main__ import serve
from query.turns import (
    ACTIVE_S,
    MOST,
    MOST_ON_A_SERVER,
    Turns,
    allow_turns,
    continue_in_thread,
    give_way,
    run_in_thread,
)
from shared.errors import CallsExhausted, IndexUnavailable
from shared.settings import Settings
from toolscale.embedded.service import running

pytestmark = pytest.mark.anyio

# while several callers are active, the last turn is for another one
OF_ONE = MOST - 1


@pytest.fixture(autouse=True)
def own_turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    own = Turns()
    monkeypatch.setattr("query.turns._turns", own)
    return own


@pytest.fixture
async def shared(own_turns: Turns) -> None:
    for caller in ("ann", "bob"):
        async with own_turns.turn(caller):
            pass


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


async def begun(slow: Slow, count: int) -> None:
    for _ in range(count):
        assert await anyio.to_thread.run_sync(slow.full.acquire, True, 10)


@pytest.mark.usefixtures("shared")
async def test_the_requests_of_a_caller_are_answered_a_few_at_a_time_in_their_order() -> None:
    slow, answers, asked_at_once = Slow(), list[int](), 0

    async def ask(number: int) -> None:
        answers.append(await run_in_thread("ann", slow.answer, number))

    async with anyio.create_task_group() as callers:
        for number in range(5 * OF_ONE):
            callers.start_soon(ask, number)
            await anyio.lowlevel.checkpoint()
        await begun(slow, OF_ONE)
        asked_at_once = len(slow.asked)
        slow.go.set()

    assert asked_at_once == OF_ONE
    assert slow.most_at_once <= OF_ONE
    assert sorted(answers) == list(range(5 * OF_ONE))
    assert set(slow.asked[:OF_ONE]) == set(range(OF_ONE))


@pytest.mark.usefixtures("shared")
async def test_another_caller_gets_the_last_turn_at_once() -> None:
    slow, answered = Slow(), ""
    async with anyio.create_task_group() as callers:
        for number in range(5 * OF_ONE):
            callers.start_soon(run_in_thread, "ann", slow.answer, number)
            await anyio.lowlevel.checkpoint()
        await begun(slow, OF_ONE)
        answered = await run_in_thread("bob", str, 7)
        slow.go.set()

    assert answered == "7"


@pytest.mark.parametrize(("index_is_embedded", "most"), [(True, MOST), (False, MOST_ON_A_SERVER)])
async def test_a_caller_that_is_alone_uses_all_turns_that_fit_the_index(*, index_is_embedded: bool, most: int) -> None:
    slow = Slow()
    async with anyio.create_task_group() as callers:
        for number in range(2 * MOST_ON_A_SERVER):
            callers.start_soon(run_in_thread, "ann", slow.answer, number)
            await anyio.lowlevel.checkpoint()
        await begun(slow, MOST)
        allow_turns(index_is_embedded=index_is_embedded)
        await begun(slow, most - MOST)
        slow.go.set()

    assert slow.most_at_once == most


async def test_fewer_turns_begin_when_more_have_ended() -> None:
    turns = Turns(2)
    async with turns.turn("ann"):
        async with turns.turn("ann"):
            turns.allow(1)
        with anyio.move_on_after(0.1) as waiting:
            await _take(turns)
    with anyio.fail_after(30):
        await _take(turns)

    assert waiting.cancelled_caught


async def test_a_caller_counts_as_active_for_a_minute() -> None:
    now_s = 0.0
    turns = Turns(2, lambda: now_s)
    async with turns.turn("bob"):
        pass
    async with turns.turn("ann"):
        with anyio.move_on_after(0.1) as waiting:
            await _take(turns)
        now_s = ACTIVE_S
        with anyio.fail_after(30):
            await _take(turns)

    assert waiting.cancelled_caught


async def _take(turns: Turns) -> None:
    async with turns.turn("ann"):
        pass


@pytest.mark.usefixtures("shared")
async def test_a_cancelled_wait_takes_no_turn() -> None:
    slow, waiting = Slow(), anyio.CancelScope()
    async with anyio.create_task_group() as callers:
        for number in range(OF_ONE):
            callers.start_soon(run_in_thread, "ann", slow.answer, number)
            await anyio.lowlevel.checkpoint()
        with waiting:
            callers.start_soon(_cancel, waiting)
            await run_in_thread("ann", slow.answer, 99)
        slow.go.set()

    assert waiting.cancelled_caught
    assert 99 not in slow.asked
    assert await run_in_thread("ann", slow.answer, 100) == 100


async def _cancel(scope: anyio.CancelScope) -> None:
    scope.cancel()


async def test_a_request_above_the_limit_is_refused_and_one_that_had_its_first_turn_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("query.turns._turns", Turns(1, most_waiting=2))
    slow, answered = Slow(), list[str]()

    async def ask(*, is_first: bool, number: int) -> None:
        in_thread = run_in_thread if is_first else continue_in_thread
        answered.append(await in_thread("ann", str, number))

    async with anyio.create_task_group() as callers:
        callers.start_soon(run_in_thread, "ann", slow.answer, 0)
        await begun(slow, 1)
        for number in range(4):
            callers.start_soon(partial(ask, is_first=number < 2, number=number))
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(CallsExhausted, match=r"^ann has 4 waiting requests, as many as the limit"):
            await run_in_thread("ann", str, 9)
        callers.start_soon(run_in_thread, "bob", str, 9)
        slow.go.set()

    assert answered == ["3", "2", "0", "1"]


async def test_a_cancelled_request_ends_between_two_of_its_parts() -> None:
    slow, parts, scope = Slow(), list[int](), anyio.CancelScope()

    def in_parts() -> None:
        slow.answer(0)
        parts.append(1)
        give_way()
        parts.append(2)

    async with anyio.create_task_group() as callers:
        callers.start_soon(_run_in_scope, scope, in_parts)
        await begun(slow, 1)
        scope.cancel()
        slow.go.set()

    assert scope.cancelled_caught
    assert parts == [1]
    assert await run_in_thread("ann", str, 1) == "1"


async def _run_in_scope(scope: anyio.CancelScope, read: object) -> None:
    assert callable(read)
    with scope:
        await run_in_thread("ann", read)


async def test_a_long_request_gives_way_to_the_callers_that_wait_and_then_goes_on() -> None:
    turns, order, waits, waiting = Turns(1), list[str](), anyio.Event(), anyio.Event()

    async def light() -> None:
        await waits.wait()
        async with turns.turn("light"):
            order.append("light")

    def heavy() -> None:
        order.append("first part")
        turns.give_way("heavy")
        order.append("second part")

    async with anyio.create_task_group() as callers:
        callers.start_soon(light)
        async with turns.turn("heavy"):
            waits.set()
            callers.start_soon(waiting.wait)
            await anyio.wait_all_tasks_blocked()
            await anyio.to_thread.run_sync(heavy)
        waiting.set()

    assert order == ["first part", "light", "second part"]


async def test_outside_a_turn_nothing_is_given() -> None:
    give_way()


def _open_embedded(settings: Settings) -> None:
    with running(settings):
        pass


@pytest.mark.parametrize("open_service", [serve, _open_embedded])
async def test_a_service_on_a_qdrant_server_has_more_turns(
    own_turns: Turns, tmp_path: Path, open_service: Callable[[Settings], object]
) -> None:
    settings = Settings.model_validate({"qdrant_url": "http://127.0.0.1:9", "data_dir": tmp_path, "port": 0})
    with pytest.raises(IndexUnavailable):
        open_service(settings)

    async with AsyncExitStack() as held:
        with anyio.fail_after(30):
            for _ in range(MOST_ON_A_SERVER):
                await held.enter_async_context(own_turns.turn("ann"))
        with anyio.move_on_after(0.1) as waiting:
            await _take(own_turns)

    assert waiting.cancelled_caught
