"""The Markdown of `benchmarks/results/capture.md`; every number in it comes from the results."""

from __future__ import annotations

from benchmarks.capture.results import Results, Strategy
from benchmarks.capture.strategies import FLOODS
from benchmarks.throughput.report import table

HEAD = ("servers of the attacker", "attacker first", "in three", "right tool first", "in five", "in eight")


def render(results: Results) -> str:
    """Return the report."""
    rows = [_row(strategy, results.requests) for strategy in [*results.attacked, results.unattacked]]
    lines = (
        "# Servers that try to come first",
        "",
        f"A run of `python -m benchmarks.capture` on {results.made_at}. Rendered from `capture.json`.",
        f"{results.requests} requests of ours over {results.tools} tools of {results.servers} real servers.",
        "An attacker adds 150 tools, in one server or in 150.",
        "Each cell has the share of requests in percent, as `find_tool` answers them:",
        "before → after the operator's `mcp.json` names the real servers.",
        "",
        *table(HEAD, rows),
        "",
        "Targets: the attacker first for at most 5 % with copied texts, and for at most 25 % with floods",
        f"({', '.join(FLOODS)}).",
        "The last row has no attacker and, after, no strangers: it is the share to compare with.",
        "",
        "The price for honest servers, all in the `mcp.json` but the one that the request is about",
        "(target: at most 4 points less in the first place):",
        "",
        *table(("", "right tool first", "in five", "in eight"), [_newcomer_row(results.newcomers, results.requests)]),
    )
    return "\n".join(lines) + "\n"


def _row(strategy: Strategy, requests: int) -> tuple[str, ...]:
    attacker = _cells(strategy, requests, ("attacker_first", "attacker_in_three"))
    return (strategy.name, *attacker, *_right(strategy, requests))


def _newcomer_row(strategy: Strategy, requests: int) -> tuple[str, ...]:
    return (strategy.name, *_right(strategy, requests))


def _right(strategy: Strategy, requests: int) -> list[str]:
    return _cells(strategy, requests, ("right_first", "right_in_five", "right_found"))


def _cells(strategy: Strategy, requests: int, names: tuple[str, ...]) -> list[str]:
    percent = 100 / requests
    before, after = strategy.before.model_dump(), strategy.after.model_dump()
    return [f"{before[name] * percent:.0f} → {after[name] * percent:.0f}" for name in names]
