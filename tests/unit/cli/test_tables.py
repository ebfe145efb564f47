"""Tables in a terminal of 80 columns, or half a terminal: no number is cut, and an error has a line of its own."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from query.usage.report import SavingsReport, Totals, UsageRow
from shared.events import ServerAnnouncement
from shared.intents.intent import Intent
from toolscale.client.costs import ServerCost, ToolCost, cost_table
from toolscale.client.savings import view
from toolscale.client.servers import Row, problems, table
from toolscale.commands.catalogue import print_tools
from toolscale.console import out

names = st.text(alphabet="abcdefgh-_./", min_size=1, max_size=120)
numbers = st.integers(0, 10**10)
widths = st.integers(45, 80)


def shown(width: int, *parts: RenderableType) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(*parts)
    assert all(len(line) <= width for line in captured.get().splitlines())
    return captured.get()


def intent(server: str, **changes: object) -> Intent:
    announced = ServerAnnouncement(server_id="s", url="http://127.0.0.1:1/mcp")
    known = Intent(server_id=server, status="running", announcement=announced, source="test", desired=1)
    return known.model_copy(update=changes)


@given(widths, names, numbers)
def test_ls_cuts_no_number(width: int, server: str, tokens: int) -> None:
    cost = ServerCost(server, tokens, 0.5, (ToolCost("get"),))

    row = Row({server: intent(server, committed=1, listed_at=1.0, due_at=1.0)}, cost)

    assert f"{tokens:,}" in shown(width, table([row], width)).split()


@given(st.integers(30, 80), names, names, numbers, st.floats(0, 1))
def test_show_cuts_no_number(width: int, tool: str, description: str, tokens: int, part: float) -> None:
    cost = ServerCost("s", tokens, 1.0, (ToolCost(tool, tokens, part, description),))

    assert {f"{tokens:,}", f"{part:.1%}"} <= set(shown(width, cost_table(cost)).split())


@given(st.integers(30, 80), names, names, numbers)
def test_find_cuts_no_number(width: int, tool: str, summary: str, tokens: int) -> None:
    metrics = {"baseline_tokens": 0}
    answer = {"tools": [{"name": tool, "summary": summary, "token_count": tokens}], "token_metrics": metrics}

    before, out.width = out.width, width
    with out.capture() as captured:
        print_tools(answer)
    out.width = before

    assert f"{tokens:,}" in captured.get().split()


@given(names, st.lists(st.integers(10**11, 10**13), min_size=12, max_size=12))
def test_savings_begin_with_the_net_number_and_cut_none(name: str, counts: list[int]) -> None:
    day = date(2025, 11, 22)
    sums = dict(zip(Totals.model_fields, counts[:8], strict=True))
    fields = ("shown", "calls", "failed_calls", "result_bytes")
    used = UsageRow.model_validate({"name": name} | dict(zip(fields, counts[8:], strict=True)))
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

    text = shown(80, view(report))

    assert {f"{number:,}" for number in counts} <= set(text.split())
    assert text.splitlines()[1].split()[:3] == ["net", "tokens", "saved,"]
    assert text.splitlines()[1].split()[-1] == f"{sums['net_tokens_saved']:,}"


def test_an_error_is_a_line_below_the_table_and_of_several_replicas_the_first_is_shown() -> None:
    long = "the server answered " + 20 * "with a long reason "
    failing = Row({"a": intent("a", last_error=f"a: {long}", failures=1)}, None)
    replicas = Row({name: intent(name, last_error=f"{name}: HTTP 500", failures=1) for name in ("w1", "w2")}, None)
    well = Row({"z": intent("z", listed_at=1.0, committed=1)}, None)

    assert problems([failing, replicas, well]) == [f"a: {long}", "w1: HTTP 500 (and 1 more)"]
    assert "reason" not in shown(80, table([failing, replicas, well], 80))


def test_a_server_that_was_never_listed_is_neither_running_nor_waiting() -> None:
    words = shown(80, table([Row({"new": intent("new")}, None)], 80)).splitlines()[1].split()

    assert words[:4] == ["new", "not", "listed", "yet"]
