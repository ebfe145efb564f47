"""Turns for large results: never more than there are, none lost, whatever becomes of the calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.calling.limits import Admission, Turn
from shared.errors import CallsExhausted

LIMIT = 2
one_of = st.integers(min_value=0, max_value=2)
steps = st.lists(
    st.tuples(st.sampled_from(["take", "pass on", "give back", "end"]), one_of, one_of), min_size=3, max_size=12
)


def held(admission: Admission) -> int:
    """Return how many turns are taken: those that nobody else can have."""
    others = [admission.turn() for _ in range(LIMIT)]
    free = sum(other.try_take() for other in others)
    for other in others:
        other.end()
    return LIMIT - free


@given(steps)
def test_turns_are_neither_lost_nor_multiplied(steps: list[tuple[str, int, int]]) -> None:
    admission = Admission(per_caller=1, large_at_once=LIMIT)
    turns = [admission.turn() for _ in range(3)]
    holders: set[int] = set()
    ended: set[int] = set()

    for step, this, other in steps:
        match step:
            case "take":
                assert turns[this].try_take() == (this in holders | ended or len(holders) < LIMIT)
                holders |= {this} - ended if len(holders) < LIMIT else set()
            case "pass on" if this != other:
                turns[this].pass_on(turns[other])
                holders = (holders - {this}) | ({other} - ended) if this in holders else holders
            case "end":
                turns[this].end()
                holders, ended = holders - {this}, ended | {this}
            case _:
                turns[this].pass_on(None)
                holders -= {this}
        assert held(admission) == len(holders)

    for turn in turns:
        turn.end()
    assert held(admission) == 0


def test_a_call_that_ended_waits_for_nothing() -> None:
    admission = Admission(per_caller=2, large_at_once=1)

    with admission.admitted("ann") as first, admission.admitted("ann") as second:
        assert first.try_take()
        assert not second.try_take()
        assert second.is_awaited

    assert second.try_take()
    assert not second.is_awaited


def test_each_caller_has_calls_of_its_own() -> None:
    admission = Admission(per_caller=1, large_at_once=1)

    raised = pytest.raises(CallsExhausted, match=r"^ann has 1 calls under way")
    with admission.admitted("ann"), admission.admitted("bob"), raised:
        _begin(admission, "ann")

    assert _begin(admission, "ann").try_take()


def _begin(admission: Admission, caller: str) -> Turn:
    with admission.admitted(caller) as turn:
        return turn
