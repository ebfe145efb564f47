"""The pages of a service over a catalogue of one size, measured from the process of its client."""

from __future__ import annotations

import time
from pathlib import Path

import httpx2

from benchmarks.page.results import FULL, Loaded, Plan, Size
from benchmarks.page.service import Service, serving
from benchmarks.throughput.corpus import definitions, server_id
from benchmarks.throughput.isolation import in_fresh_process

TOOL = definitions(server_id(1), 1, FULL.seed)[0]["name"]
PAGES = {
    "overview": "/ui",
    "servers": "/ui/servers",
    "servers, filtered": "/ui/servers?q=a&label=env%3Dprod&sort=name&order=desc",
    "server": f"/ui/servers/{server_id(1)}",
    "tool": f"/ui/tools/{server_id(1)}:{TOOL}",
    "advice": "/ui/advice",
    "find": "/ui/find?q=send+a+message+to+the+team",
    "history": "/ui/history",
}


def measure_pages(servers: int, plan: Plan) -> Size:
    """Return the cost of each page with so many servers."""
    return in_fresh_process(_at_size, servers, plan)


def _at_size(directory: Path, servers: int, plan: Plan) -> Size:
    with serving(directory, servers, plan) as service, httpx2.Client(base_url=service.url, trust_env=False) as client:
        pages = tuple(_loaded(name, path, service, client, plan.loads) for name, path in PAGES.items())
    return Size(servers=servers, pages=pages)


def _loaded(name: str, path: str, service: Service, client: httpx2.Client, loads: int) -> Loaded:
    before_ms = service.processor_ms()
    length = len(client.get(path).raise_for_status().content)
    first_ms = service.processor_ms() - before_ms
    slowest_s, begun_ms = 0.0, service.processor_ms()
    for _ in range(loads):
        started_s = time.perf_counter()
        client.get(path).raise_for_status()
        slowest_s = max(slowest_s, time.perf_counter() - started_s)
    mean_ms = (service.processor_ms() - begun_ms) / loads
    return Loaded(
        page=name,
        path=path,
        first_ms=round(first_ms, 1),
        mean_ms=round(mean_ms, 1),
        slowest_ms=round(slowest_s * 1e3, 1),
        size_kib=round(length / 1024, 1),
    )
