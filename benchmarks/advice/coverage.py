"""The share of calls that a choice of tools covers: of the calls behind the choice, and of later ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, takewhile
from random import Random

import numpy as np

from benchmarks.requests.data import Request
from benchmarks.throughput.results import Frozen, Spread
from query.advice.choice import best_within, by_calls
from query.advice.use import ToolUse

BUDGETS = (2_000, 4_000, 8_000)
# Runs with other halves; the seed of a run is its number.
RUNS = 50
TARGET = 0.95
STEP = 100
DRAWN = 2_000
TEAM_SERVERS = 3

Costs = Mapping[str, int]
"""Tokens in the model form by qualified name."""
Calls = Sequence[str]
Choose = Callable[[Sequence[ToolUse], int], list[ToolUse]]
Traffic = Callable[[Sequence[Request], int], tuple[Calls, Calls]]


class Coverage(Frozen):
    """Percentages of the calls that a method covers within a budget."""

    traffic: str
    method: str
    budget_tokens: int
    past: Spread
    after: Spread
    most_past: Spread
    """Of the best possible choice, by dynamic programming."""


class Needed(Frozen):
    """The least budget, in steps of STEP tokens, with which a method covers TARGET of the past calls."""

    traffic: str
    method: str
    tokens: Spread


def halves(requests: Sequence[Request], seed: int) -> tuple[Calls, Calls]:
    """Return the calls of each half of the requests, in a seeded order: each request comes once."""
    ordered = Random(seed).sample(requests, len(requests))
    middle = len(ordered) // 2
    return calls_of(ordered[:middle]), calls_of(ordered[middle:])


def skewed(requests: Sequence[Request], seed: int) -> tuple[Calls, Calls]:
    """Return the calls of DRAWN requests, twice: the n-th of the seeded order has the weight 1/n (Zipf)."""
    chance = Random(seed)
    ordered = chance.sample(requests, len(requests))
    weights = [1 / rank for rank in range(1, len(ordered) + 1)]
    first, second = (chance.choices(ordered, weights, k=DRAWN) for _ in range(2))
    return calls_of(first), calls_of(second)


def of_a_team(requests: Sequence[Request], seed: int) -> tuple[Calls, Calls]:
    """Return the skewed calls of a team that uses TEAM_SERVERS servers, chosen by the seed."""
    servers = sorted({_server(call) for call in calls_of(requests)})
    used = set(Random(seed).sample(servers, min(TEAM_SERVERS, len(servers))))
    return skewed([request for request in requests if set(map(_server, calls_of([request]))) <= used], seed)


def calls_of(requests: Sequence[Request]) -> Calls:
    """Return a call of the first right tool of each step."""
    return [step[0] for request in requests for step in request.tools]


def in_order_of_use(tools: Sequence[ToolUse], budget_tokens: int) -> list[ToolUse]:
    """Return the tools that an enforced budget keeps: the most called first, each that still fits."""
    kept: list[ToolUse] = []
    for tool in sorted(tools, key=by_calls):
        if tool.tokens <= budget_tokens:
            kept.append(tool)
            budget_tokens -= tool.tokens
    return kept


def cut_off(tools: Sequence[ToolUse], budget_tokens: int) -> list[ToolUse]:
    """Return the first tools of the alphabet, until one does not fit."""
    ordered = sorted(tools, key=lambda tool: tool.name)
    sums = accumulate(tool.tokens for tool in ordered)
    return [tool for tool, _ in takewhile(lambda pair: pair[1] <= budget_tokens, zip(ordered, sums, strict=True))]


METHODS: Mapping[str, Choose] = {"advised": best_within, "by use": in_order_of_use, "alphabetical": cut_off}
TRAFFIC: Mapping[str, Traffic] = {
    "each request once": halves,
    "skewed": skewed,
    f"skewed, of {TEAM_SERVERS} servers": of_a_team,
}


def coverages(requests: Sequence[Request], costs: Costs, runs: int = RUNS) -> list[Coverage]:
    """Return the coverage of each method, traffic and budget, over `runs` seeds."""
    return [
        _coverage(requests, costs, traffic, method, budget, runs)
        for traffic in TRAFFIC
        for budget in BUDGETS
        for method in METHODS
    ]


def needed(requests: Sequence[Request], costs: Costs, runs: int = RUNS) -> list[Needed]:
    """Return the least budget of each method and traffic, over `runs` seeds."""
    return [
        Needed(
            traffic=traffic,
            method=method,
            tokens=Spread.of([_needed(TRAFFIC[traffic](requests, seed)[0], costs, method) for seed in range(runs)]),
        )
        for traffic in TRAFFIC
        for method in METHODS
    ]


def share(calls: Calls, chosen: Sequence[ToolUse]) -> float:
    """Return the percentage of these calls whose tool is chosen."""
    names = {tool.name for tool in chosen}
    return 100 * sum(call in names for call in calls) / len(calls)


def most_calls(tools: Sequence[ToolUse], budget_tokens: int) -> int:
    """Return the calls of the best choice within the budget: the exact solution of the knapsack."""
    best = np.zeros(budget_tokens + 1, np.int64)
    for tool in tools:
        if tool.calls and tool.tokens <= budget_tokens:
            room = len(best) - tool.tokens
            best[tool.tokens :] = np.maximum(best[tool.tokens :], best[:room] + tool.calls)
    return int(best[-1])


def _coverage(
    requests: Sequence[Request], costs: Costs, traffic: str, method: str, budget_tokens: int, runs: int
) -> Coverage:
    pasts: list[float] = []
    afters: list[float] = []
    most: list[float] = []
    for seed in range(runs):
        past, after = TRAFFIC[traffic](requests, seed)
        tools = _uses(past, costs)
        chosen = METHODS[method](tools, budget_tokens)
        most.append(100 * most_calls(tools, budget_tokens) / len(past))
        pasts.append(share(past, chosen))
        afters.append(share(after, chosen))
    return Coverage(
        traffic=traffic,
        method=method,
        budget_tokens=budget_tokens,
        past=Spread.of(pasts),
        after=Spread.of(afters),
        most_past=Spread.of(most),
    )


def _needed(past: Calls, costs: Costs, method: str) -> float:
    tools = _uses(past, costs)
    everything = -(-sum(costs.values()) // STEP) * STEP
    budgets = range(STEP, everything + STEP, STEP)
    return next(budget for budget in budgets if share(past, METHODS[method](tools, budget)) >= 100 * TARGET)


def _server(qualified_name: str) -> str:
    return qualified_name.partition(":")[0]


def _uses(calls: Calls, costs: Costs) -> list[ToolUse]:
    counts = Counter(calls)
    return [ToolUse(name=name, tokens=tokens, calls=counts[name]) for name, tokens in costs.items()]
