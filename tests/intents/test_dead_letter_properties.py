"""A dead letter has its bound for any message, and keeps a message that fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.intents.intent import CUT_MARK, LETTER_BYTES, DeadLetter

# Characters of one to six bytes as JSON, lone surrogates included.
PARTS = st.sampled_from(["x", "\x01", "\\", '"', "é", "\U0001f600", "\ud800"])
RUNS = st.lists(st.tuples(PARTS, st.integers(0, 20_000)), max_size=6)


def text(runs: list[tuple[str, int]]) -> str:
    return "".join(part * times for part, times in runs)


@given(reason=RUNS.map(text), body=RUNS.map(text))
def test_a_letter_never_exceeds_its_bytes_and_is_cut_only_if_it_must_be(reason: str, body: str) -> None:
    letter = DeadLetter.of(1795409545.447176, reason, body)

    size_bytes = len(letter.model_dump_json().encode())
    whole = body.encode("utf-8", "replace").decode()
    assert size_bytes <= LETTER_BYTES
    assert whole.startswith(letter.body.removesuffix(CUT_MARK))
    if letter.body.endswith(CUT_MARK):
        full = letter.model_copy(update={"body": whole})
        assert len(full.model_dump_json().encode()) > LETTER_BYTES
    else:
        assert letter.body == whole
