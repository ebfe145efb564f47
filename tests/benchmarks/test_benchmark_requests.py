"""The requests over the demo's servers, and attacks on them: recall, places, and runs on a few tools."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import capture, requests
from benchmarks.capture import COLUMNS, places_of
from benchmarks.harness import Figures, document, kept
from benchmarks.requests import Servers, missing, read_requests, recall
from tests.support.builders import definition

SERVERS: Servers = {
    "time": [definition("get_current_time", "Returns the time in a zone."), definition("convert_time", "Converts it.")],
    "git": [definition("git_status", "Shows which files of a repository are changed.")],
}
ANSWERS: list[Figures] = [
    {"tools": [["time:a", "time:b"], ["git:c"]], "found": ["time:b", "x:y", "git:c"]},
    {"tools": [["git:d"]], "found": []},
]


def test_each_step_of_a_request_needs_one_of_its_tools() -> None:
    assert missing(ANSWERS[0], 2) == ["git:c"]
    assert [recall(ANSWERS, cut_off) for cut_off in (1, 3)] == [25, 50]


def test_a_place_counts_down_to_its_rank() -> None:
    found = [("tools", "a"), ("time", "b"), ("git", "c"), ("git", "d"), ("time", "a")]

    places = places_of(found, ["time:a"], ["time", "git"])

    assert dict(zip(COLUMNS, (1, 1, 0, 1, 1), strict=True)) == places
    assert set(places_of([], ["time:a"], ["time"]).values()) == {0}


@pytest.mark.process
@pytest.mark.parametrize("benchmark", [requests, capture], ids=["requests", "capture"])
def test_a_run_on_a_few_tools_leaves_figures_and_a_report(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few = {request: steps for request, steps in list(read_requests().items())[:4] if steps}

    def demo_servers(_: Path) -> Servers:
        return SERVERS

    monkeypatch.setattr(benchmark, "demo_servers", demo_servers)
    monkeypatch.setattr(benchmark, "read_requests", lambda: few)
    monkeypatch.setattr(capture, "FLOOD_TOOLS", 3)
    monkeypatch.setattr(sys, "argv", ["benchmark", "--output", str(tmp_path)])

    benchmark.main()

    name = benchmark.__name__.rpartition(".")[2]
    figures = kept(name, tmp_path)
    assert figures["tools"] == 3
    assert document(benchmark.render(figures)) == (tmp_path / f"{name}.md").read_text(encoding="utf-8")
