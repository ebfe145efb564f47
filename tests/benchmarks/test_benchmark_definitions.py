"""The report of definitions is that of the kept JSON, and the threshold of lint is where confusions are frequent."""

from __future__ import annotations

from benchmarks.command import RESULTS
from benchmarks.definitions.__main__ import Results, render
from toolscale.lint.rules import SIMILAR

KEPT = Results.model_validate_json((RESULTS / "definitions.json").read_bytes())


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    assert render(KEPT) == (RESULTS / "definitions.md").read_text(encoding="utf-8")


def test_similar_descriptions_are_confused_more_often_than_any_others() -> None:
    similar = [row for row in KEPT.confusions if row.cosine >= SIMILAR]
    others = [row for row in KEPT.confusions if row.cosine < SIMILAR]

    share = sum(row.before for row in similar) / sum(row.pairs for row in similar)
    assert share > 2 * max(row.before / row.pairs for row in others)


def test_the_shorter_definitions_are_of_the_same_tools() -> None:
    tokens = dict.fromkeys((row.server for row in KEPT.shorter), 0)
    for tool in KEPT.tools:
        tokens[tool.name.partition(":")[0]] += sum(tool.parts.values())

    assert {row.server: row.tokens for row in KEPT.shorter} == tokens
    assert all(0 <= row.saved < row.tokens for row in KEPT.shorter)
