from __future__ import annotations

from shared.catalog import SparseVector, ToolDefinition
from shared.text.bm25 import query_terms, tool_terms


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
