"""A query service over a catalogue of one size, measured from the process of its clients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path

import anyio

from benchmarks.serving import crowd, single
from benchmarks.serving.plan import Plan
from benchmarks.serving.results import Served
from benchmarks.serving.service import Service, another, serving
from benchmarks.throughput.corpus import queries
from benchmarks.throughput.isolation import in_fresh_process
from tests.support.qdrant_server import qdrant_url


def measure_serving(tools: int, plan: Plan) -> Served:
    """Return what clients wait for where the catalogue has so many tools."""
    return in_fresh_process(_at_size, tools, plan)


def _at_size(directory: Path, tools: int, plan: Plan) -> Served:
    with serving(directory, tools, plan) as service, _beside(service) as second:
        return anyio.run(_measure, service, second, tools, plan)


def _beside(service: Service) -> AbstractContextManager[Service | None]:
    """Run a second process where the index can serve two."""
    return another(service) if qdrant_url() else nullcontext()


async def _measure(service: Service, second: Service | None, tools: int, plan: Plan) -> Served:
    compositions = [[service], [service, second]] if second else [[service]]
    needed = single.questions_needed(plan) + crowd.questions_needed(plan, len(compositions))
    fresh = iter(queries(needed, plan.seed))
    asked = await single.measure_asking(service, plan, fresh)
    called = await single.measure_calling(service, plan)
    crowds = [await crowd.measure_crowds(services, plan, fresh) for services in compositions]
    return Served(
        tools=tools,
        servers=tools // plan.tools_per_server,
        asked=asked,
        called=called,
        crowds=tuple(chain.from_iterable(crowds)),
    )
