"""No cursor leads to an entry but the very one that was given out, for its caller, tool and question."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from query.kept import Kept
from shared.errors import CursorInvalid

MUTATIONS = 10_000
ALPHABET = string.ascii_letters + string.digits + "-_"
KEPT = Kept()
entries = st.binary(max_size=100)
purposes = st.lists(st.text(max_size=10), min_size=1, max_size=4)


@given(entries, purposes)
def test_a_cursor_leads_to_its_entry(entry: bytes, bound_to: list[str]) -> None:
    cursor = KEPT.put(entry, *bound_to)

    assert KEPT.get(cursor, *bound_to) == entry
    assert set(cursor) <= set(ALPHABET)
    assert len(cursor) == 22


@given(entries, purposes, purposes)
def test_a_cursor_is_refused_for_another_caller_or_question(
    entry: bytes, bound_to: list[str], other: list[str]
) -> None:
    assume(bound_to != other)

    with pytest.raises(CursorInvalid):
        KEPT.get(KEPT.put(entry, *bound_to), *other)


@given(st.text(max_size=100) | st.text(ALPHABET, max_size=100) | st.text(ALPHABET, min_size=22, max_size=22))
def test_a_text_that_was_never_given_out_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalid):
        KEPT.get(text, "caller")


def test_of_ten_thousand_changed_cursors_none_is_accepted() -> None:
    chance, kept = random.Random(20), Kept()
    cursors = [kept.put(chance.randbytes(40), "caller") for _ in range(100)]

    accepted = [changed for _ in range(MUTATIONS) if is_accepted(changed := mutated(cursors, chance), kept)]

    assert accepted == []
    assert all(is_accepted(cursor, kept) for cursor in cursors)


def is_accepted(cursor: str, kept: Kept) -> bool:
    try:
        kept.get(cursor, "caller")
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
