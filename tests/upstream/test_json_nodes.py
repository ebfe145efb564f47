"""How many values a JSON text holds is told from its bytes alone, however it comes, and nothing hides any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Union

from hypothesis import example, given
from hypothesis import strategies as st

from shared.upstream.messages import EventMeter, NodeMeter, count_nodes, holds_more_values

Json = Union[None, bool, int, str, list["Json"], dict[str, "Json"]]  # noqa: UP007  # recursive

MARKS = ',[{"\\\r\n]}:a1 '
leaf = st.none() | st.booleans() | st.integers() | st.text(alphabet=MARKS) | st.text()
values = st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)
steps = st.integers(1, 9)


def value_count(value: Json) -> int:
    """Return how many values follow a `[`, a `{` or a comma, an empty container's bracket counted as well."""
    return sum(1 for _ in _followers(value))


def _followers(value: Json) -> Iterator[None]:
    if isinstance(value, list | dict):
        items = list(value.values()) if isinstance(value, dict) else value
        yield from [None] * max(1, len(items))
        for item in items:
            yield from _followers(item)


def as_json(value: Json, *, as_ascii: bool) -> bytes:
    return json.dumps(value, ensure_ascii=as_ascii).encode("utf-8", "surrogatepass")


def pieces(text: bytes, step: int) -> list[bytes]:
    return [text[start : start + step] for start in range(0, len(text), step)]


@given(values, st.booleans(), steps)
def test_values_are_counted_as_they_would_be_after_parsing_however_the_text_is_cut(
    value: Json, as_ascii: bool, step: int
) -> None:
    text, meter = as_json(value, as_ascii=as_ascii), NodeMeter()

    for piece in pieces(text, step):
        meter.add(piece)

    assert count_nodes(text) == meter.nodes == value_count(value)


@given(values, st.booleans())
def test_a_text_holds_more_values_than_any_lower_limit(value: Json, as_ascii: bool) -> None:
    text, held = as_json(value, as_ascii=as_ascii), value_count(value)

    assert not holds_more_values(text, held)
    assert held == 0 or holds_more_values(text, held - 1)


@given(st.text(alphabet=MARKS), values, st.sampled_from(["\n", "\r", "\r\n"]), steps)
@example(': "', [[], []], "\n", 1_000)
@example('id: \\"', [[], []], "\r", 9)
def test_no_line_of_an_event_hides_the_values_of_the_next(before: str, value: Json, end: str, step: int) -> None:
    line = before.replace("\r", "").replace("\n", "")
    event = f"{line}{end}data: ".encode() + as_json(value, as_ascii=True)
    meter = EventMeter()

    for piece in pieces(event, step):
        meter.add(piece)

    assert meter.nodes >= value_count(value)


@given(values, steps | st.just(1_000))
def test_an_event_counts_to_its_end_and_the_next_one_for_itself(value: Json, step: int) -> None:
    event = b"data: " + as_json(value, as_ascii=True) + b"\n\n"
    meter = EventMeter()

    counted: list[int] = []
    for piece in pieces(event, step):
        meter.add(piece)
        counted.append(meter.nodes)
    meter.add(b"data: []\n\n")

    assert max(counted) == value_count(value)
    assert meter.nodes == 1


def test_a_text_of_quotes_alone_is_walked_over_once() -> None:
    meter = NodeMeter()

    meter.add(b'{"' + b'\\",' * 500_000)

    assert meter.nodes == 1
