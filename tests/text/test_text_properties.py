"""Whatever a text holds, its terms are usable, and each side of BM25 finds the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.catalog import ToolDefinition
from shared.text.bm25 import STOP_WORDS, name_terms, prose_terms, query_terms, tool_terms

# lone surrogates too: they are what servers may send
texts = st.text(st.characters(), max_size=60)
latin_words = st.lists(st.from_regex(r"[a-z]{3,9}", fullmatch=True), min_size=1, max_size=5)


@given(text=texts)
def test_terms_hold_no_space_and_no_capital_and_are_never_empty(text: str) -> None:
    for term in [*prose_terms(text), *name_terms(text)]:
        assert term
        assert term == term.lower() == term.strip()


@given(text=texts)
def test_vectors_have_distinct_ascending_indices_of_32_bits_and_positive_values(text: str) -> None:
    tool = ToolDefinition(name=text, wire="{}", description=text, parameters=(text,))

    for vector in (query_terms(text), tool_terms(tool, text)):
        assert list(vector.indices) == sorted(set(vector.indices))
        assert all(0 <= index < 1 << 32 for index in vector.indices)
        assert all(value > 0 for value in vector.values)


@given(parts=latin_words)
def test_snake_kebab_and_spaced_names_have_the_same_terms(parts: list[str]) -> None:
    assert name_terms("_".join(parts)) == name_terms("-".join(parts)) == name_terms(" ".join(parts))


@given(parts=latin_words)
def test_a_tool_is_found_by_the_words_of_its_camel_case_name(parts: list[str]) -> None:
    camel = parts[0] + "".join(part.capitalize() for part in parts[1:])
    tool = tool_terms(ToolDefinition(name=camel, wire="{}"), "server")

    asked = query_terms(" ".join(part for part in parts if part not in STOP_WORDS))

    assert set(asked.indices) <= set(tool.indices)
