"""Slots for large results: none is lost or multiplied, however calls end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

from query.calling.limits import TURN_S, Admission, CallExchange, MessageSlots, ResultSlot
from shared.errors import CallsExhausted
from shared.upstream.session import current_exchange

LIMIT = 2
steps = st.lists(
    st.tuples(st.sampled_from(["acquire", "release", "close"]), st.integers(min_value=0, max_value=2)),
    min_size=3,
    max_size=12,
)


def held(admission: Admission) -> int:
    """Return how many slots no other call can acquire."""
    others = [admission.slot() for _ in range(LIMIT)]
    free = sum(other.try_acquire() for other in others)
    for other in others:
        other.close()
    return LIMIT - free


@given(steps)
def test_slots_are_neither_lost_nor_multiplied(steps: list[tuple[str, int]]) -> None:
    admission = Admission(per_caller=1, large_at_once=LIMIT)
    slots = [admission.slot() for _ in range(3)]
    holders: set[int] = set()
    closed: set[int] = set()

    for step, this in steps:
        match step:
            case "acquire":
                assert slots[this].try_acquire() == (this in holders | closed or len(holders) < LIMIT)
                holders |= {this} - closed if len(holders) < LIMIT else set()
            case "release":
                assert slots[this].release() == (this in holders)
                holders -= {this}
            case _:
                slots[this].close()
                holders, closed = holders - {this}, closed | {this}
        assert held(admission) == len(holders)

    for slot in slots:
        slot.close()
    assert held(admission) == 0


def test_a_call_that_ended_waits_for_nothing() -> None:
    admission = Admission(per_caller=2, large_at_once=1)

    with admission.admitted("ann") as first, admission.admitted("ann") as second:
        assert first.try_acquire()
        assert not second.try_acquire()
        assert second.is_waiting

    assert second.try_acquire()
    assert not second.is_waiting


@pytest.mark.parametrize(("answered", "held_after"), [(7, 1), (8, 0)])
def test_a_large_message_on_a_shared_stream_counts_for_the_call_it_answers(answered: int, held_after: int) -> None:
    admission = Admission(per_caller=1, large_at_once=LIMIT)
    messages = MessageSlots(admission.slot())
    with admission.admitted("ann") as slot:
        token = current_exchange.set(CallExchange(slot=slot))
        messages.on_sent(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=7, method="tools/call")))
        current_exchange.reset(token)

        assert messages.try_acquire()
        messages.on_received(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=answered, result={})))

        assert held(admission) == held_after

    assert held(admission) == 0


def test_a_result_that_is_read_for_too_long_loses_its_turn_to_one_that_waits() -> None:
    clock = itertools.count(0.0, TURN_S / 2)
    admission = Admission(per_caller=9, large_at_once=1, clock_s=clock.__next__)
    dripping, waiting = admission.slot("ann"), admission.slot("bob")

    assert dripping.try_acquire()
    assert not waiting.try_acquire()
    assert waiting.try_acquire()

    assert not dripping.try_acquire()
    assert dripping.is_waiting
    assert waiting.release()
    assert not dripping.release()


def test_a_complete_result_keeps_its_turn() -> None:
    clock = itertools.count(0.0, TURN_S)
    admission = Admission(per_caller=9, large_at_once=1, clock_s=clock.__next__)
    complete, waiting = admission.slot("ann"), admission.slot("bob")

    assert complete.try_acquire()
    complete.settle()

    assert not any(waiting.try_acquire() for _ in range(9))
    assert complete.release()


def test_one_caller_has_half_of_the_turns_while_another_waits() -> None:
    admission = Admission(per_caller=9, large_at_once=4, clock_s=lambda: 0.0)
    many, one = [admission.slot("ann") for _ in range(6)], admission.slot("bob")

    assert [slot.try_acquire() for slot in many] == [True] * 4 + [False] * 2
    assert not one.try_acquire()
    many[0].close()
    assert not many[4].try_acquire()
    assert one.try_acquire()


def test_the_limit_of_one_caller_does_not_count_calls_of_another() -> None:
    admission = Admission(per_caller=1, large_at_once=1)

    raised = pytest.raises(CallsExhausted, match=r"^ann has 1 calls in flight")
    with admission.admitted("ann"), admission.admitted("bob"), raised:
        _begin(admission, "ann")

    assert _begin(admission, "ann").try_acquire()


def _begin(admission: Admission, caller: str) -> ResultSlot:
    with admission.admitted(caller) as slot:
        return slot
