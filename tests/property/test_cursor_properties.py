"""No cursor opens but the very one that was sealed, for the very caller and question it was sealed for."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from query.cursors import own_cursors
from query.cursors.cursors import INLINE_BYTES
from query.cursors.sealing import KEY_BYTES, Sealer
from shared.errors import CursorInvalid

MUTATIONS = 10_000
ALPHABET = string.ascii_letters + string.digits + "-_"
CURSORS = own_cursors()
states = st.binary(max_size=2 * INLINE_BYTES)
purposes = st.lists(st.text(max_size=10), max_size=4)


@given(states, purposes)
def test_a_cursor_opens_to_the_state_it_was_sealed_with(state: bytes, bound_to: list[str]) -> None:
    cursor = CURSORS.seal(state, *bound_to)

    assert CURSORS.unseal(cursor, *bound_to) == state
    assert set(cursor) <= set(ALPHABET)
    assert len(cursor) <= 77


@given(states, purposes, purposes)
def test_a_cursor_does_not_open_for_another_caller_or_question(
    state: bytes, bound_to: list[str], other: list[str]
) -> None:
    assume(bound_to != other)

    with pytest.raises(CursorInvalid):
        CURSORS.unseal(CURSORS.seal(state, *bound_to), *other)


@given(st.text(max_size=100) | st.text(ALPHABET, max_size=100))
def test_a_text_that_was_never_sealed_does_not_open(text: str) -> None:
    with pytest.raises(CursorInvalid):
        CURSORS.unseal(text)


def test_of_ten_thousand_changed_cursors_none_is_accepted() -> None:
    chance = random.Random(20)
    sealer = Sealer([bytes(range(KEY_BYTES))], ttl_s=60)
    cursors = [sealer.seal(chance.randbytes(chance.randrange(INLINE_BYTES)), "caller") for _ in range(100)]

    accepted = [changed for _ in range(MUTATIONS) if is_accepted(changed := mutated(cursors, chance), sealer)]

    assert accepted == []


def is_accepted(cursor: str, sealer: Sealer) -> bool:
    try:
        sealer.unseal(cursor, "caller")
    except CursorInvalid:
        return False
    return True


def mutated(cursors: list[str], chance: random.Random) -> str:
    """Return a cursor that is not one of these: changed, cut, grown, joined with another, or decorated."""
    cursor, other = chance.choice(cursors), chance.choice(cursors)
    at, letter = chance.randrange(len(cursor)), chance.choice(ALPHABET)
    changed = chance.choice(
        [
            cursor[:at] + letter + cursor[at + 1 :],
            cursor[:at] + letter + cursor[at:],
            cursor[:at] + cursor[at + 1 :],
            cursor[:at],
            cursor[:at] + other[at:],
            cursor + chance.choice(["=", "==", " ", "\n", "A", "\u00e9"]),
            cursor[:at] + chance.choice(["=", " ", "\n", "+", "/", "."]) + cursor[at:],
            cursor.swapcase(),
            cursor[::-1],
        ]
    )
    return mutated(cursors, chance) if changed in cursors else changed
