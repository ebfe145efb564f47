from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from shared.upstream.session import SMALL_BYTES, SMALL_NODES, SessionState
from workers.fetch.turns import LargePayloadSlots


def test_a_limited_number_of_servers_have_a_slot_at_a_time() -> None:
    slots = LargePayloadSlots(2)

    with slots.released("a"):
        assert [slots.try_acquire(each) for each in ("a", "b", "c", "a")] == [True, True, False, True]

    assert [slots.try_acquire(each) for each in ("b", "c", "a")] == [True, True, False]


def test_a_slot_is_released_after_a_failure() -> None:
    slots = LargePayloadSlots(1)

    slots.try_acquire("a")

    with pytest.raises(ZeroDivisionError), slots.released("a"):
        raise ZeroDivisionError

    assert slots.try_acquire("b")


def test_many_threads_never_have_more_slots_than_the_limit() -> None:
    slots = LargePayloadSlots(3)

    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(slots.try_acquire, map(str, range(200))))

    assert sum(taken) == 3


def test_a_small_message_waits_for_no_slot() -> None:
    async def hold() -> None:
        evidence = SessionState("s", anyio.CancelScope(), may_hold_large=lambda: False)
        with anyio.fail_after(30):
            await evidence.wait_for_slot(SMALL_BYTES, SMALL_NODES)

    anyio.run(hold)


@pytest.mark.parametrize(("size_bytes", "nodes"), [(SMALL_BYTES + 1, 0), (0, SMALL_NODES + 1)])
def test_a_large_message_waits_and_the_servers_time_does_not_run(size_bytes: int, nodes: int) -> None:
    answers = iter([False, False, False, True])

    async def hold() -> float:
        with anyio.CancelScope(deadline=anyio.current_time() + 0.1) as scope:
            evidence = SessionState("s", scope, may_hold_large=lambda: next(answers))
            began = scope.deadline
            await evidence.wait_for_slot(size_bytes, nodes)
            return scope.deadline - began
        raise AssertionError("the time ran out while waiting")

    assert anyio.run(hold) >= 0.15
    assert next(answers, None) is None
