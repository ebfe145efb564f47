"""The benchmark of advice: its methods, its traffic and its report."""

from __future__ import annotations

import json
from itertools import combinations
from random import Random

import pytest

from benchmarks.advice.__main__ import Results, measured, render
from benchmarks.advice.coverage import METHODS, TRAFFIC, calls_of, coverages, cut_off, most_calls, needed
from benchmarks.command import RESULTS
from benchmarks.requests.data import Request, read_requests
from query.advice.choice import calls_of as calls_of_tools
from query.advice.choice import tokens_of
from query.advice.use import ToolUse
from shared.catalog import ToolDefinition

KEPT = RESULTS / "advice.json"
REQUESTS = [Request(request=f"do {name}", tools=((f"s:{name}",),)) for name in "abcdefgh"]
COSTS = {f"s:{name}": 100 * number for number, name in enumerate("abcdefgh", 1)}


def test_an_alphabetical_cut_off_ends_at_the_first_tool_that_does_not_fit() -> None:
    tools = [ToolUse(name=name, tokens=tokens) for name, tokens in (("b", 50), ("a", 10), ("c", 1))]

    assert [tool.name for tool in cut_off(tools, 59)] == ["a"]
    assert [tool.name for tool in cut_off(tools, 61)] == ["a", "b", "c"]


def test_no_choice_has_more_calls_than_the_best_possible_one() -> None:
    chance = Random(7)
    tools = [ToolUse(name=f"s:{n}", tokens=chance.randint(1, 40), calls=chance.randint(0, 9)) for n in range(9)]
    every = [choice for size in range(10) for choice in combinations(tools, size) if tokens_of(choice) <= 80]

    assert most_calls(tools, 80) == max(map(calls_of_tools, every))


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_traffic_depends_on_its_seed_alone(traffic: str) -> None:
    requests = [request for request in read_requests() if request.tools]

    assert TRAFFIC[traffic](requests, 1) == TRAFFIC[traffic](requests, 1)
    assert TRAFFIC[traffic](requests, 1) != TRAFFIC[traffic](requests, 2)


def test_each_request_is_in_one_half() -> None:
    past, after = TRAFFIC["each request once"](REQUESTS, 3)

    assert sorted([*past, *after]) == sorted(calls_of(REQUESTS))


def test_the_advised_tools_cover_no_fewer_past_calls_than_the_other_methods() -> None:
    rows = coverages(REQUESTS, COSTS, runs=3)
    by_method = {(row.traffic, row.budget_tokens, row.method): row for row in rows}

    for (traffic, budget, method), row in by_method.items():
        advised = by_method[traffic, budget, "advised"]
        assert row.past.median <= advised.past.median <= advised.most_past.median, method
    assert {row.method for row in needed(REQUESTS, COSTS, runs=2)} == set(METHODS)


def test_a_run_finds_the_rivals_of_its_servers() -> None:
    schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    wire = {"name": "fetch_page", "description": "Fetch the content of a web page", "inputSchema": schema}
    servers = {server: [ToolDefinition.from_wire(json.dumps(wire))] for server in ("one", "two")}
    request = Request(request="read a page", tools=(("one:fetch_page", "two:fetch_page"),))

    found = measured(servers, [request, request], runs=2)

    (pair,) = found.pairs
    assert {pair.first, pair.second} == {"one:fetch_page", "two:fetch_page"}
    assert (pair.takes_the_same, pair.are_alternatives) == (True, True)
    assert "| one:fetch_page | two:fetch_page | 1.00 | yes | yes |" in render(found)


def test_the_kept_report_is_rendered_from_the_kept_results() -> None:
    kept = Results.model_validate_json(KEPT.read_text(encoding="utf-8"))

    assert render(kept) == KEPT.with_suffix(".md").read_text(encoding="utf-8")
