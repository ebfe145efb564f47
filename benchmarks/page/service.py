"""A real query service over a catalogue of many servers with a history."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from benchmarks.page.results import Plan
from benchmarks.throughput.catalogue import fill
from benchmarks.throughput.corpus import definitions, server_id
from benchmarks.throughput.embedded import embedded_settings
from query.usage.usage import CatalogueSize, RowKey, open_usage, today
from shared.catalog import OPERATOR_SOURCE, ServerRecord
from shared.index.tools import ToolIndex
from shared.settings import Settings
from shared.text import BUNDLED_MODEL
from shared.text.embedding import BUNDLED_DIMENSION
from tests.support.indexes import open_index
from tests.support.processes import Composition

_STARTED = "query_service_started"
_SOURCES = (OPERATOR_SOURCE, "toolscale/docker", "toolscale/kubernetes", "toolscale/cli")
# One server in so many is in each of the other states.
_FAILING, _STOPPED, _QUARANTINED = 20, 25, 50
# A start takes a few seconds, and the sizes that are sampled each ten seconds little time after it.
IDLE_S, START_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Service:
    """The address of the service and its process."""

    url: str
    process: psutil.Process

    def processor_ms(self) -> float:
        """Return the processor time of the service so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system) * 1e3

    def wait_until_idle(self) -> None:
        """Wait until the service uses no processor time: after its start, it reads the catalogue in the background.

        Raises TimeoutError after START_S.
        """
        until_s, before_ms = time.monotonic() + START_S, -1.0
        while (now_ms := self.processor_ms()) > before_ms:
            if time.monotonic() > until_s:
                raise TimeoutError(f"the service is still busy after {START_S:.0f} s")
            before_ms = now_ms
            time.sleep(IDLE_S)


@contextmanager
def serving(directory: Path, servers: int, plan: Plan) -> Generator[Service]:
    """Fill an index and a history, and run `python -m query` on them, with its default settings."""
    settings = embedded_settings(directory)
    with closing(open_index(settings, BUNDLED_MODEL, BUNDLED_DIMENSION)) as index:
        fill(index, range(servers), plan.tools_per_server, plan.seed, BUNDLED_DIMENSION)
        for number, record in enumerate(sorted(index.servers(), key=lambda record: record.server_id)):
            index.put_server(_varied(record, number))
        _write_history(settings, index, plan)
    environment = {"TOOLSCALE_PORT": "0", "TOOLSCALE_HOST": "", "QDRANT_URL": "", "TOOLSCALE_LOG_LEVEL": ""}
    with Composition("", directory, environment).run("query", "-m", "query") as running:
        running.wait_for(_STARTED)
        lines = (json.loads(line) for line in running.output().splitlines())
        url = next(str(line["url"]) for line in lines if line["event"] == _STARTED)
        service = Service(url.removesuffix("/mcp"), psutil.Process(running.process.pid))
        service.wait_until_idle()
        yield service


def _varied(record: ServerRecord, number: int) -> ServerRecord:
    """Return the record with groups, labels, a source and a state as fleets have them."""
    changes: dict[str, object] = {
        "groups": frozenset({f"team-{number % 40}"}),
        "labels": {"env": ("prod", "test")[number % 2], "region": f"r{number % 7}"},
        "source": _SOURCES[number % len(_SOURCES)],
    }
    if number % _FAILING == 1:
        changes |= {"stale_since": 2.0, "failures": 2, "last_error": f"{record.server_id}: the connection closed"}
    if number % _STOPPED == 2:
        changes |= {"status": "stopped"}
    if number % _QUARANTINED == 3:
        changes |= {"status": "quarantined", "failures": 5, "stale_since": 2.0, "last_error": "no connection"}
    return record.model_copy(update=changes)


def _write_history(settings: Settings, index: ToolIndex, plan: Plan) -> None:
    records = index.servers()
    tools, tokens = sum(each.tool_count for each in records), sum(each.model_tokens["cl100k_base"] for each in records)
    called = _called(len(records), plan)
    with closing(open_usage(settings)) as usage:
        for ago in range(plan.days):
            day = today() - timedelta(days=ago)
            usage.put_size(day, CatalogueSize(len(records), tools, tokens))
            used = {
                RowKey(day, *each): {"answers": 9, "calls": 3, "failed_calls": 1, "bytes": 4_096} for each in called
            }
            usage.add(used)


def _called(servers: int, plan: Plan) -> list[tuple[str, str, str]]:
    """Return each caller with the servers and tools that it calls every day."""
    called: list[tuple[str, str, str]] = []
    for caller in range(plan.callers):
        for number in range(plan.callers):
            server = server_id((caller * 31 + number) % servers)
            tools = definitions(server, plan.tools_per_server, plan.seed)
            called.append((f"caller-{caller}", server, tools[number % len(tools)]["name"]))
    return called
