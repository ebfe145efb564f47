from __future__ import annotations

from benchmarks.answers.__main__ import Results, render
from benchmarks.command import RESULTS


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    kept = Results.model_validate_json((RESULTS / "answers.json").read_text(encoding="utf-8"))

    assert render(kept) == (RESULTS / "answers.md").read_text(encoding="utf-8")


def test_eight_summaries_take_less_than_a_thousand_tokens_and_are_of_the_same_tools() -> None:
    kept = Results.model_validate_json((RESULTS / "answers.json").read_text(encoding="utf-8"))
    (summaries,) = [form for form in kept.forms if form.form == "summary"]

    assert summaries.median_tokens < 1_000
    assert summaries.median_tools == 8
    assert kept.same_ranking == kept.questions
