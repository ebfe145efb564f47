"""Turns: any order of arrivals, ends, pauses and cancellations."""

from __future__ import annotations

from collections import Counter

import anyio
import anyio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from query.turns import Turns
from shared.errors import CallsExhausted

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
