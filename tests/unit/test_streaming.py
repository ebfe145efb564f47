"""Which requests are refused before anything parses them, told from their bytes alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Union

from hypothesis import given
from hypothesis import strategies as st

from shared.upstream.json_nodes import holds_more_values

Json = Union[None, bool, int, str, list["Json"], dict[str, "Json"]]  # noqa: UP007  # recursive

leaf = st.none() | st.booleans() | st.integers() | st.text(alphabet=st.sampled_from('a,[{"\\\n]}')) | st.text()
values = st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


def value_count(value: Json) -> int:
    """Return how many values follow a `[`, a `{` or a comma, an empty container's bracket counted as well."""
    return sum(1 for _ in _followers(value))


def _followers(value: Json) -> Iterator[None]:
    if isinstance(value, list | dict):
        items = list(value.values()) if isinstance(value, dict) else value
        yield from [None] * max(1, len(items))
        for item in items:
            yield from _followers(item)


@given(values, st.booleans())
def test_values_are_counted_as_they_would_be_after_parsing(value: Json, as_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=as_ascii).encode("utf-8", "surrogatepass")
    held = value_count(value)

    assert not holds_more_values(text, held)
    assert held == 0 or holds_more_values(text, held - 1)


def test_a_text_of_quotes_alone_is_walked_over_once() -> None:
    assert not holds_more_values(b'{"' + b'\\",' * 500_000, 1_000)
