"""One trace over real processes, from the event to the points and from the search to the index, at a real collector."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from celery import Celery
from mcp import Client
from mcp.types import RequestParamsMeta

from tests.e2e.test_serve import config as config
from tests.e2e.test_serve import serving
from tests.support.builders import up
from tests.support.collector import Collector, collecting
from tests.support.docker_api import scripted_docker
from tests.support.events_api import Producer
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import ScriptedServer, scripted_http
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.waiting import eventually
from tests.support.warm import run
from workers.celery_app import ACCEPT_EVENT

pytestmark = pytest.mark.process

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TOKEN = "of-the-collector"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
IN_TRACE = cast("RequestParamsMeta", {"traceparent": PARENT})

RECONCILE_SPANS = {
    ("toolscale-worker", name) for name in ("reconcile", "fetch", "MCP send tools/list", "count", "embed", "upsert")
}


@pytest.fixture
def collector() -> Generator[Collector]:
    with collecting() as running:
        yield running
        assert running.authorizations == {TOKEN}


@pytest.fixture
def composition(own_redis_url: str, tmp_path: Path, collector: Collector) -> Composition:
    return Composition(own_redis_url, tmp_path, traced(collector))


@pytest.fixture
def server() -> Generator[ScriptedServer]:
    pages = one_page(tool("read_file"))
    with scripted_http(lambda exchange: exchange.play(pages)) as running:
        yield running


def traced(collector: Collector) -> dict[str, str]:
    """Return the environment of a process that is traced."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={TOKEN}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def asked_for_tools_in(server: ScriptedServer) -> list[str]:
    """Return the traces that the server was told of when it was asked for its tools."""
    asked: list[dict[str, Any]] = [request.request_json for request in server.seen if request.method == "tools/list"]
    return [request["params"]["_meta"]["traceparent"].split("-")[1] for request in asked]


@pytest.mark.redis
def test_one_trace_leads_from_the_command_that_emits_to_the_points_and_to_the_server(
    composition: Composition, collector: Collector, server: ScriptedServer
) -> None:
    with composition.worker() as worker:
        emitted = run(
            [sys.executable, "-m", "toolscale", "emit", "up", "files", "--url", server.url],
            env=composition.environment,
        )
        assert emitted.returncode == 0, emitted.stderr
        eventually(lambda: collector.named("upsert") and collector.named("reconcile"), what=worker.output())

    (recorded,) = collector.named("record event")
    assert collector.names(recorded.trace) >= RECONCILE_SPANS | {("toolscale", "record event")}
    (reconciled,) = collector.named("reconcile")
    assert reconciled.parent == recorded.span
    assert {span.parent for name in ("fetch", "embed", "upsert") for span in collector.named(name)} == {reconciled.span}
    assert asked_for_tools_in(server) == [recorded.trace]


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.parametrize("carrier", ["event", "message"])
def test_a_reconciliation_continues_the_trace_of_a_producer(
    composition: Composition, collector: Collector, server: ScriptedServer, carrier: str
) -> None:
    event = up("files", url=server.url).model_dump(mode="json")
    given = {"event": event | {"traceparent": PARENT}, "message": event}[carrier]
    headers = {"traceparent": PARENT} if carrier == "message" else {}
    with composition.worker() as worker, Celery("producer", broker=composition.redis_url) as producer:
        producer.send_task(ACCEPT_EVENT, args=[given], queue="toolscale", headers=headers)
        eventually(lambda: collector.named("reconcile"), what=worker.output())

    assert collector.names(TRACE) >= RECONCILE_SPANS | {("toolscale-worker", "record event")}


@pytest.mark.slow
@pytest.mark.redis
def test_a_trace_enters_by_the_events_api_and_continues_in_a_pool_of_processes(
    composition: Composition, collector: Collector, server: ScriptedServer
) -> None:
    token, port = "a-token-for-traces", free_port()
    events_api = {"TOOLSCALE_EVENTS_TOKEN": token, "TOOLSCALE_EVENTS_PORT": str(port)}
    with (
        composition.worker("worker", "--pool", "processes", "--concurrency", "1") as worker,
        composition.run("events-api", "-m", "workers.events_api", **events_api) as opened,
    ):
        opened.wait_for("events_api_started")
        event = up("files", url=server.url).model_dump(mode="json")
        assert Producer(f"http://127.0.0.1:{port}", token).post(event, traceparent=PARENT).status == 202
        eventually(lambda: collector.named("reconcile"), what=worker.output())

    assert collector.names(TRACE) >= RECONCILE_SPANS | {("toolscale-events-api", "record event")}
    assert asked_for_tools_in(server) == [TRACE]


@pytest.mark.slow
@pytest.mark.redis
@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_what_a_worker_recorded_last_is_sent_when_it_ends(
    composition: Composition, collector: Collector, server: ScriptedServer, pool: str
) -> None:
    options = ("--pool", pool, "--concurrency", "1")
    with (
        composition.worker("worker", *options, OTEL_BSP_SCHEDULE_DELAY="600000") as worker,
        Celery("producer", broker=composition.redis_url) as producer,
    ):
        event = up("files", url=server.url).model_dump(mode="json")
        producer.send_task(ACCEPT_EVENT, args=[event], queue="toolscale")
        worker.wait_for("server_indexed")
        before = collector.named("reconcile")
        assert worker.stop() == 0

    assert before == []
    assert collector.named("reconcile")


@pytest.mark.slow
def test_what_a_watcher_records_begins_a_trace_of_its_own(tmp_path: Path, collector: Collector) -> None:
    with scripted_docker() as docker:
        docker.start("a", server="docs", port="9000")
        composition = Composition("", tmp_path, {**docker.environ, **traced(collector), "REDIS_URL": ""})
        with composition.run("watch", "-m", "toolscale", "watch", "docker") as watcher:
            eventually(lambda: collector.named("record event"), what=watcher.output())

    (recorded,) = collector.named("record event")
    assert (recorded.service, recorded.parent) == ("toolscale-source", "")


@pytest.mark.slow
def test_a_search_by_the_query_service_of_its_own_is_a_part_of_its_callers_trace(
    tmp_path: Path, collector: Collector
) -> None:
    port = free_port()
    environment = {**traced(collector), "REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_PORT": str(port)}
    with Composition("", tmp_path, environment).run("query", "-m", "query") as service:
        service.wait_for("query_service_started")
        anyio.run(_find, f"http://127.0.0.1:{port}/mcp")
        assert service.stop() == 0

    found = collector.names(TRACE)
    assert found >= {("toolscale-query", name) for name in ("tools/call find_tool", "search index", "sum baseline")}


async def _find(url: str) -> None:
    async with Client(url) as client:
        await client.call_tool("find_tool", {"tool_description": "first"}, meta=IN_TRACE)


@pytest.mark.slow
def test_a_search_and_a_call_are_parts_of_their_callers_trace(
    config: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in traced(collector).items():
        monkeypatch.setenv(name, value)
    with serving(config) as (running, url):
        running.wait_for("server_indexed")
        anyio.run(_find_and_call, url)
        assert running.stop() == 0

    names = {name for _, name in collector.names(TRACE)}
    assert names >= {"tools/call find_tool", "embed query", "search index", "sum baseline", "fit answer"}
    assert {"tools/call call_tool", "MCP send tools/call tool_000"} <= names


async def _find_and_call(url: str) -> None:
    async with Client(url) as client:
        await client.call_tool("find_tool", {"tool_description": "first"}, meta=IN_TRACE)
        called: dict[str, Any] = {"server_name": "good", "tool_name": "tool_000", "parameters": {}}
        await client.call_tool("call_tool", called, meta=IN_TRACE)
