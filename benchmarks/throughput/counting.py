"""Counting the tokens of many definitions in one go, one encoding after the other."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.throughput.catalogue import read_tools
from benchmarks.throughput.corpus import server_id
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.plan import Plan
from benchmarks.throughput.results import Counted, Spread
from shared.catalog import ENCODINGS, Encoding
from shared.text.tokens import Counter, count_all, counter


def measure_counting(plan: Plan) -> tuple[Counted, ...]:
    """Return the times for each number of tools and each encoding."""
    return in_fresh_process(_count, plan)


def _count(_: Path, plan: Plan) -> tuple[Counted, ...]:
    wires = _wires(max(plan.count_sizes), plan)
    return tuple(
        _measured(wires[:size], encoding, plan.repetitions) for size in plan.count_sizes for encoding in ENCODINGS
    )


def _wires(count: int, plan: Plan) -> list[str]:
    servers = range(-(-count // plan.tools_per_server))
    tools = (tool for number in servers for tool in read_tools(server_id(number), plan.tools_per_server, plan.seed))
    return [tool.wire for tool in tools][:count]


def _measured(wires: list[str], encoding: Encoding, repetitions: int) -> Counted:
    count = counter(encoding)
    count("loads the vocabulary")
    runs = [_time_ms(wires, encoding, count) for _ in range(repetitions)]
    return Counted(tools=len(wires), encoding=encoding, tokens=sum(map(count, wires)), ms=Spread.of(runs))


def _time_ms(wires: list[str], encoding: Encoding, count: Counter) -> float:
    started = time.perf_counter()
    count_all(wires, {encoding: count})
    return (time.perf_counter() - started) * 1000
