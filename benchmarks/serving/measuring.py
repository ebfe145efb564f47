"""A query service over a catalogue of one size, measured from the process of its clients."""

from __future__ import annotations

from pathlib import Path

import anyio

from benchmarks.serving import crowd, single
from benchmarks.serving.plan import Plan
from benchmarks.serving.results import Served
from benchmarks.serving.service import Service, serving
from benchmarks.throughput.corpus import queries
from benchmarks.throughput.isolation import in_fresh_process


def measure_serving(tools: int, plan: Plan) -> Served:
    """Return what clients wait for where the catalogue has so many tools."""
    return in_fresh_process(_at_size, tools, plan)


def _at_size(directory: Path, tools: int, plan: Plan) -> Served:
    with serving(directory, tools, plan) as service:
        return anyio.run(_measure, service, tools, plan)


async def _measure(service: Service, tools: int, plan: Plan) -> Served:
    fresh = iter(queries(single.questions_needed(plan) + crowd.questions_needed(plan), plan.seed))
    return Served(
        tools=tools,
        servers=tools // plan.tools_per_server,
        asked=await single.measure_asking(service, plan, fresh),
        called=await single.measure_calling(service, plan),
        crowds=await crowd.measure_crowd(service, plan, fresh),
    )
