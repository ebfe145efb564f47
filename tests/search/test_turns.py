"""Turns of callers: a few requests at a time, and none of a caller keeps another out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.fixture(autouse=True)
def own_turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    own = Turns()
    monkeypatch.setattr("query.turns._turns", own)
    return own


class Slow:
    """Answers when told to, and remembers how many were asked at the same time."""

    def __init__(self) -> None:
        self.full = threading.Semaphore(0)
        self.go = threading.Event()
        self._lock = threading.Lock()
        self._at_once = self.most_at_once = 0

    def answer(self, number: int) -> int:
        with self._lock:
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
        assert await has_to_wait(turns)
    assert not await has_to_wait(turns)


async def test_a_caller_counts_as_active_for_a_minute() -> None:
    now_s = 0.0
    turns = Turns(2, lambda: now_s)
    async with turns.turn("bob"):
        pass
    async with turns.turn("ann"):
        assert await has_to_wait(turns)
        now_s = ACTIVE_S
        assert not await has_to_wait(turns)


async def has_to_wait(turns: Turns) -> bool:
    """Return whether ann has no turn at once."""
    with anyio.move_on_after(0) as waiting:
        async with turns.turn("ann"):
            pass
    return waiting.cancelled_caught


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
    give_way()  # outside a turn, there is none to give


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
        assert await has_to_wait(own_turns)


# --- any order of arrivals, ends and cancellations ---

CALLERS = "abcd"


class Play:
    """Requests that end when told to; `granted` are the callers in the order of their turns."""

    def __init__(self, most: int, more: int, most_waiting: int) -> None:
        self.of_one = max(most - 1, 1)
        self.turns, self.most_waiting = Turns(most, lambda: 0.0, most_waiting), most_waiting
        self.turns.allow(most + more)
        self.granted: list[str] = []
        self.waiting: list[tuple[str, anyio.CancelScope]] = []
        self.held: list[tuple[str, anyio.Event]] = []
        self.cancelled_that_ran = 0
        # for each pair, turns of the first since the second waits without a turn
        self.passed = Counter[tuple[str, str]]()

    async def request(self, caller: str) -> None:
        is_full = self.waiting_of(caller) == self.most_waiting
        try:
            await self.admitted(caller)
        except CallsExhausted:
            assert is_full
        else:
            assert not is_full

    def waiting_of(self, caller: str) -> int:
        return [waiting for waiting, _ in self.waiting].count(caller)

    async def admitted(self, caller: str) -> None:
        with anyio.CancelScope() as scope:
            entry = caller, scope
            self.waiting.append(entry)
            try:
                async with self.turns.turn(caller):
                    self.waiting.remove(entry)
                    self.begin(caller)
                    self.cancelled_that_ran += scope.cancel_called
                    end = anyio.Event()
                    self.held.append((caller, end))
                    await end.wait()
                    self.held.remove((caller, end))
            finally:
                if entry in self.waiting:
                    self.waiting.remove(entry)

    def begin(self, caller: str) -> None:
        holders = [holder for holder, _ in self.held]
        if len(set(self.granted)) > 1:  # several callers are active
            assert caller not in holders or holders.count(caller) < self.of_one
        self.granted.append(caller)
        for other in CALLERS:
            waits = any(name == other for name, _ in self.waiting) and other not in holders
            self.passed[caller, other] = self.passed[caller, other] + 1 if waits and other != caller else 0
            self.passed[other, caller] = 0


async def settle() -> None:
    for _ in range(6):
        await anyio.lowlevel.checkpoint()


async def _play(most: int, more: int, most_waiting: int, steps: list[tuple[str, str]]) -> None:
    play = Play(most, more, most_waiting)
    async with anyio.create_task_group() as tasks:
        for action, caller in steps:
            if action == "arrive":
                tasks.start_soon(play.request, caller)
            elif action == "end" and play.held:
                play.held[ord(caller) % len(play.held)][1].set()
            elif action == "cancel" and play.waiting:
                play.waiting[ord(caller) % len(play.waiting)][1].cancel()
            await settle()
            assert len(play.held) <= most + more
            assert all(play.waiting_of(each) <= most_waiting for each in CALLERS)
            assert all(count <= 1 for count in play.passed.values())
            assert not (play.waiting and not play.held)
        while play.held:
            play.held[0][1].set()
            await settle()
    assert not play.waiting
    assert not play.cancelled_that_ran


actions = st.tuples(st.sampled_from(["arrive", "arrive", "end", "cancel"]), st.sampled_from(CALLERS))


@given(st.integers(1, 4), st.integers(0, 6), st.integers(1, 5), st.lists(actions, max_size=60))
def test_waiting_callers_take_turns_and_each_has_a_limit_of_waiting_requests(
    most: int, more: int, most_waiting: int, steps: list[tuple[str, str]]
) -> None:
    anyio.run(_play, most, more, most_waiting, steps)
