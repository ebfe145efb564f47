"""A real query service over a filled catalogue, and the scripted servers whose tools it can call."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from mcp import StdioServerParameters

from benchmarks.qdrant import wait_until_indexed
from benchmarks.serving.plan import Plan
from benchmarks.serving.scripted import MODULE, WORK, over_http
from benchmarks.throughput.catalogue import MAX_BYTES, PROTOCOL_VERSION, fill, put_server, unit_vectors
from benchmarks.throughput.corpus import server_id
from benchmarks.throughput.embedded import index_settings
from benchmarks.throughput.machine import processor_s
from shared.text import BUNDLED_MODEL
from shared.text.embedding import BUNDLED_DIMENSION
from shared.toolset import Toolset
from tests.support.indexes import open_index
from tests.support.processes import Composition, Running
from workers.fetch.definitions import read_definition

ROOT = Path(__file__).parents[2]
TOOLSET = "bench"
# The operator's file names the servers that can be called so.
OVER_HTTP, OVER_STDIO = "scripted-http", "scripted-stdio"


@dataclass(frozen=True, slots=True)
class Service:
    """Where the service listens, and its process; `scripted` are the same servers that it calls, by their names."""

    url: str
    process: psutil.Process
    scripted: dict[str, str | StdioServerParameters]
    composition: Composition

    @property
    def toolset_url(self) -> str:
        """Return where a caller has the toolset."""
        return f"{self.url}/{TOOLSET}"

    def processor_s(self) -> float:
        """Return the seconds of processor time that the service itself took so far."""
        return processor_s(self.process)


@contextmanager
def serving(directory: Path, tools: int, plan: Plan) -> Generator[Service]:
    """Fill an index with so many tools and run `python -m query` on it, with its default settings."""
    _fill(directory, tools, plan)
    with over_http() as scripted_url:
        config = _config(directory, scripted_url)
        environment = {"TOOLSCALE_PORT": "0", "TOOLSCALE_HOST": "", "TOOLSCALE_LOG_LEVEL": ""}
        composition = Composition("", directory, {**environment, "TOOLSCALE_MCP_CONFIG": str(config)})
        with _running(composition, "query", {OVER_HTTP: scripted_url, OVER_STDIO: _stdio()}) as service:
            yield service


@contextmanager
def another(service: Service) -> Generator[Service]:
    """Run one more process of the service; both need a Qdrant server."""
    with _running(service.composition, "another", service.scripted) as started:
        yield started


@contextmanager
def _running(
    composition: Composition, name: str, scripted: dict[str, str | StdioServerParameters]
) -> Generator[Service]:
    with composition.run(name, "-m", "query") as running:
        running.wait_for("query_service_started")
        yield Service(_url(running), psutil.Process(running.process.pid), scripted, composition)


def _fill(directory: Path, tools: int, plan: Plan) -> None:
    work, _ = read_definition(WORK.model_dump(by_alias=True, exclude_none=True), PROTOCOL_VERSION, MAX_BYTES)
    settings = index_settings(directory)
    with closing(open_index(settings, BUNDLED_MODEL, BUNDLED_DIMENSION)) as index:
        fill(index, range(tools // plan.tools_per_server), plan.tools_per_server, plan.seed, BUNDLED_DIMENSION)
        for name in (OVER_HTTP, OVER_STDIO):
            put_server(index, name, [work], unit_vectors(2, BUNDLED_DIMENSION, plan.seed))
        index.put_toolset(Toolset(name=TOOLSET, tools=(server_id(0),)))
    if settings.qdrant_url:
        wait_until_indexed(settings.qdrant_url)


def _config(directory: Path, url: str) -> Path:
    stdio = _stdio()
    child = {"command": stdio.command, "args": stdio.args, "env": {"PYTHONPATH": str(ROOT)}}
    config = directory / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {OVER_HTTP: {"url": url}, OVER_STDIO: child}}), encoding="utf-8")
    return config


def _stdio() -> StdioServerParameters:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return StdioServerParameters(command=sys.executable, args=["-m", MODULE, "stdio"], env=environment)


def _url(service: Running) -> str:
    lines = (json.loads(line) for line in service.output().splitlines())
    return next(str(line["url"]) for line in lines if line["event"] == "query_service_started")
