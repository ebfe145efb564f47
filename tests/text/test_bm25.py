"""The terms of a text and their weights, for BM25."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.catalog import SparseVector, ToolDefinition
from shared.text.bm25 import STOP_WORDS, name_terms, prose_terms, query_terms, tool_terms, words


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        ("read_file", "read file"),
        ("getHTTPStatus_code", "get HTTP Status code"),
        ("list-pull-requests", "list pull requests"),
        ("already words", "already words"),
        ("", ""),
    ],
)
def test_an_identifier_is_split_into_its_words(identifier: str, expected: str) -> None:
    assert words(identifier) == expected


def test_a_name_has_the_terms_of_its_whole_and_of_its_parts() -> None:
    assert name_terms("listBranches") == ["listbranch", "list", "branch"]
    assert name_terms("list_pull_requests") == ["list", "pull", "request"]
    assert name_terms("sha256") == ["sha256", "sha", "256"]


@pytest.mark.parametrize(
    ("prose", "terms"),
    [
        ("on GitHub", ["github"]),  # a proper name stays whole
        ("call listBranches", ["call", "listbranch", "list", "branch"]),
        ("it is what it is", []),
        ("生成PDF报告", ["生成", "pdf", "报告"]),
        ("图", ["图"]),
    ],
)
def test_prose_has_the_terms_of_its_words_in_each_script(prose: str, terms: list[str]) -> None:
    assert prose_terms(prose) == terms


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Please help me, I need to list the running tasks", "list running task"),
        ("Прочитать файлы", "прочитать файл"),
        ("ＰＤＦ Report", "pdf report"),  # noqa: RUF001  # full-width letters are the case
    ],
)
def test_forms_widths_and_cases_of_words_share_terms(one: str, other: str) -> None:
    assert prose_terms(one) == prose_terms(other)


def test_a_chinese_query_shares_terms_with_a_description_that_holds_its_words() -> None:
    described = set(prose_terms("查询城市未来七天的天气预报"))

    assert set(prose_terms("天气预报查询")) & described == {"天气", "气预", "预报", "查询"}


def weight(tool: ToolDefinition, word: str, server: str = "s") -> float:
    """Return the weight of a word's only term in a tool, 0 when it has none."""
    (index,) = query_terms(word).indices
    vector = tool_terms(tool, server)
    return dict(zip(vector.indices, vector.values, strict=True)).get(index, 0.0)


def test_a_word_weighs_most_in_the_name_and_least_among_the_parameters() -> None:
    named = weight(ToolDefinition("invoice_x", "{}", "other words", ("y",)), "invoice")
    described = weight(ToolDefinition("other_x", "{}", "invoice words", ("y",)), "invoice")
    taken = weight(ToolDefinition("other_x", "{}", "words", ("invoice", "y")), "invoice")
    served = weight(ToolDefinition("other_x", "{}", "words", ("y",)), "invoice", server="invoice")

    assert named > described > taken > 0
    assert served > taken


def test_saying_it_again_and_again_helps_less_each_time() -> None:
    once, twice, often = (weight(ToolDefinition("t", "{}", " ".join(["invoice"] * n)), "invoice") for n in (1, 2, 40))

    assert 0 < twice - once < once
    assert often < 2.2  # k1 + 1, which no weight reaches


def test_a_word_weighs_less_in_a_longer_tool() -> None:
    padding = " ".join(f"word{i}" for i in range(300))

    assert weight(ToolDefinition("t", "{}", f"invoice {padding}"), "invoice") < weight(
        ToolDefinition("t", "{}", "invoice"), "invoice"
    )


def test_a_query_counts_each_term_once_and_stop_words_not_at_all() -> None:
    assert query_terms("list lists listing").values == (1.0,)
    assert query_terms("please help me with it") == SparseVector((), ())


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
