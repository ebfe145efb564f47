"""Numbers agree with what is beside them, nothing is a share of nothing, and errors have one look."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shared.amounts import span
from tests.cli.test_lint import READ, defined, reported
from tests.e2e.test_costs import environment_of
from tests.support.warm import run
from toolscale import console
from toolscale.commands import servers, tools
from toolscale.commands.tools import print_tools
from toolscale.costs import Cost, CostReport, ServerCost, as_object, print_report
from toolscale.lint import view


def run_toolscale(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "toolscale", *arguments], env=environment_of(home), cwd=home)


COST = Cost(2, dict.fromkeys(("wire", "generic", "anthropic", "openai"), 100))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8))
def test_costs_state_how_many_were_tried_listed_and_failed(drawn: list[tuple[bool, bool]]) -> None:
    of = [ServerCost(f"s{number}", COST if listed else None, None, tried or listed) for number, (tried, listed) in
          enumerate(drawn)]  # fmt: skip
    report = as_object(CostReport("cl100k_base", (), of, COST))

    assert report["listed"] == sum(listed for _, listed in drawn)
    assert report["tried"] == report["listed"] + report["failed"]
    assert report["failed"] == sum(tried and not listed for tried, listed in drawn)


def printed(width: int, monkeypatch: pytest.MonkeyPatch) -> Console:
    out = Console(markup=False, emoji=False, highlight=False, width=width, force_terminal=False)
    for module in (console, servers, tools, view):
        monkeypatch.setattr(module, "out", out)
    return out


NAMED: dict[str, st.SearchStrategy[Any]] = {"name": st.just("a:b"), "summary": st.just("b(): x")}
COUNTED: dict[str, st.SearchStrategy[Any]] = {
    "token_count": st.integers(0, 5_000),
    "served_by": st.just({"count": 2, "servers": ["a", "c"]}),
}
found_tools: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.fixed_dictionaries(NAMED, optional=COUNTED), max_size=5
)


@given(found_tools, st.integers(0, 100_000), st.integers(0, 100_000))
def test_the_sum_of_a_search_is_that_of_its_column(found: list[dict[str, Any]], baseline: int, returned: int) -> None:
    metrics = {"baseline_tokens": baseline, "returned_tokens": returned, "savings_percentage": 100.0}
    with pytest.MonkeyPatch.context() as patch:
        out = printed(120, patch)
        with out.capture() as captured:
            print_tools({"tools": found, "token_metrics": metrics | {"encoding": "cl100k_base"}})

    tokens = sum(tool.get("token_count", 0) for tool in found)
    told = re.search(r"^([\d,]+) tokens in place of ([\d,]+): ([\d.e-]+) % saved", captured.get(), re.MULTILINE)
    assert bool(told) == (tokens > 0 and baseline > 0)
    if told:
        assert int(told[1].replace(",", "")) == tokens
        assert float(told[3]) < 100 or tokens * 10_000 < baseline


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3_360, "56 min"), (3_600, "1 h"), (200_000, "2 d")],
)
def test_times_have_the_unit_that_a_person_says(seconds: float, words: str) -> None:
    known: list[list[dict[str, Any]]] = []
    backlog = {"due": 1, "overdue_s": seconds, "dead_letters": 0}

    assert span(seconds) == words
    assert servers.footer(known, {"backlog": backlog})[-1].endswith(f"for {words}")


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_lint_prints_a_line_for_each_finding_where_the_terminal_is_narrow(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "a_tool_with_a_rather_long_name_"
    listed = [defined(f"{long}{number}", "x", properties={"a": {"type": "string"}}) for number in range(4)]
    report = reported(*listed, defined("read", READ))
    out = printed(width, monkeypatch)

    with out.capture() as captured:
        view.print_report(report)

    lines = captured.get().splitlines()
    rules = {finding.rule for finding in report.findings}
    by_rule = [line.split() for line in lines if line.split() and line.split()[0] in rules]
    assert {name: int(count) for name, count in by_rule} == {
        rule: sum(finding.rule == rule for finding in report.findings) for rule in rules
    }
    if width <= 100:
        of_findings = [line for line in lines if line.strip().startswith(("error ", "warning ", "note "))]
        assert len(of_findings) == len(report.findings)
        assert max(map(len, of_findings)) <= width


def test_a_report_of_nothing_has_no_percentage(monkeypatch: pytest.MonkeyPatch) -> None:
    out = printed(120, monkeypatch)
    none = Cost(0, dict.fromkeys(COST.tokens, 0))

    with out.capture() as captured:
        print_report(CostReport("cl100k_base", (), [ServerCost("s", none)], none))

    assert "%" not in captured.get()


@pytest.mark.process
@pytest.mark.parametrize(
    "arguments",
    ["add", "nonsense", "ls --nope", "ls --watch --json", "find x --limit 0", "serve --port x", "emit event /nope",
     "emit up x --url http://x --label y", "token new", "show", "logs x --lines many", "lint"],
)  # fmt: skip
def test_every_wrong_command_is_one_line_that_names_the_help_or_the_cure(arguments: str, tmp_path: Path) -> None:
    done = run_toolscale(tmp_path, *arguments.split())

    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode == 2
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert "--" in lines[0]
    assert "Value error" not in done.stderr
    assert done.stdout == ""


@pytest.mark.process
@pytest.mark.parametrize(
    ("commands", "options", "code"),
    [
        ({"dead": "exit 3", "none": "exit 3"}, [], 1),
        ({"dead": "exit 3"}, ["--partial-ok"], 1),
        ({"dead": "exit 3", "good": ""}, [], 1),
        ({"dead": "exit 3", "good": ""}, ["--partial-ok"], 0),
        ({"good": ""}, [], 0),
        ({"good": "", "off": "off"}, [], 0),
    ],
)
def test_the_exit_code_of_costs_states_whether_all_were_listed(
    commands: dict[str, str], options: list[str], code: int, tmp_path: Path
) -> None:
    good = str(Path(__file__).parents[1] / "support" / "hostile" / "stdio_server.py")
    entries: dict[str, dict[str, Any]] = {
        name: {"command": sys.executable, "args": [good, "good"]} if text in ("", "off") else
        {"command": "sh", "args": ["-c", f"{text} # {name}"]}
        for name, text in commands.items()
    }  # fmt: skip
    if "off" in entries:
        entries["off"]["disabled"] = True
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": entries}))

    done = run_toolscale(tmp_path, "costs", "--config", str(tmp_path / "servers.json"), "--json", *options)

    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["tried"] == len(commands) - ("off" in commands)
