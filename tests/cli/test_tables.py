"""Tables in a terminal of 80 columns, or half a terminal: no number is cut."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from query.usage.report import SavingsReport, Totals, UsageRow
from toolscale.commands.savings import print_savings
from toolscale.commands.tools import print_tools
from toolscale.console import Column, out, print_table

names = st.text(alphabet="abcdefgh-_./", min_size=1, max_size=120)
numbers = st.integers(0, 10**10)
widths = st.integers(45, 80)


@given(st.integers(30, 80), names, names, numbers)
def test_find_cuts_no_number(width: int, tool: str, summary: str, tokens: int) -> None:
    metrics = {"baseline_tokens": 0}
    answer = {"tools": [{"name": tool, "summary": summary, "token_count": tokens}], "token_metrics": metrics}

    before, out.width = out.width, width
    with out.capture() as captured:
        print_tools(answer)
    out.width = before

    assert f"{tokens:,}" in captured.get().split()


@given(names, st.lists(st.integers(10**11, 10**13), min_size=14, max_size=14))
def test_savings_begin_with_the_net_number_and_cut_none(name: str, counts: list[int]) -> None:
    day = date(2025, 11, 22)
    sums = dict(zip(Totals.model_fields, counts[:10], strict=True))
    fields = ("shown", "calls", "failed_calls", "result_bytes")
    used = UsageRow.model_validate({"name": name} | dict(zip(fields, counts[10:], strict=True)))
    report = SavingsReport.model_construct(
        first_day=day,
        last_day=day,
        profile="generic",
        totals=Totals.model_validate(sums),
        advice="",
        by_day=[],
        catalogue=[],
        own_tools=[],
        by_server=[used],
        by_tool=[],
    )

    before, out.width = out.width, 80
    with out.capture() as captured:
        print_savings(report.model_dump(mode="json"))
    out.width, text = before, captured.get()

    assert all(len(line) <= 80 for line in text.splitlines())
    assert {f"{number:,}" for number in counts} <= set(text.split())
    assert text.splitlines()[1].split()[:3] == ["net", "tokens", "saved,"]
    assert text.splitlines()[1].split()[-1] == f"{sums['net_tokens_saved']:,}"


@given(st.integers(30, 80), names, names, numbers)
def test_a_table_fits_the_terminal_and_folds_only_texts(width: int, first: str, last: str, number: int) -> None:
    before, out.width = out.width, width

    with out.capture() as captured:
        print_table((Column("a"), Column("n", is_number=True), Column("b")), [(first, f"{number:,}", last)])
    out.width = before

    head, *lines = captured.get().splitlines()
    assert head.split() == ["a", "n", "b"]
    assert all(len(line) <= width for line in lines)
    assert f"{number:,}" in lines[0].split()
    assert "".join("".join(lines).split()) == "".join(f"{first}{number:,}{last}".split()) or len(lines) > 1


def test_a_wide_sign_takes_two_cells() -> None:
    with out.capture() as captured:
        print_table((Column("a"), Column("b")), [("日本", "x"), ("abcd", "y")])

    assert captured.get().splitlines()[1:] == [" 日本  x", " abcd  y"]
