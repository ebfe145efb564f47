"""What real worker processes on a real Redis say of themselves: their metrics, and that they do nothing."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery

from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from tests.support.builders import up
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import scripted_http
from tests.support.metrics import scraped
from tests.support.ports import free_port
from tests.support.processes import APP, Composition, Running
from tests.support.waiting import eventually
from workers.celery_app import ACCEPT_EVENT

pytestmark = [pytest.mark.process, pytest.mark.redis]

MAX_MEMORY = 64 << 20


@dataclass(frozen=True)
class Monitored:
    """A composition whose worker has a port of its own."""

    composition: Composition
    port: int = field(default_factory=free_port)

    @contextmanager
    def worker(self, *options: str, app: str = APP, **environment: str) -> Generator[Running]:
        """Run the worker until the block ends; it is ready at the beginning."""
        given = {"TOOLSCALE_METRICS_PORT": str(self.port), **environment}
        with self.composition.worker("worker", *options, app=app, **given) as worker:
            eventually(lambda: self.ready() == 200, what=worker.output())
            yield worker

    def ready(self) -> int:
        """Return the status of `/readyz`, 0 where nobody answers in time."""
        return self.readiness()[0]

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return the status of `/readyz`, and what it says."""
        return self.answer("/readyz")

    def check(self, name: str) -> str:
        """Return the result of one check of `/readyz`."""
        return str(self.readiness()[1]["checks"][name])

    def answer(self, path: str, within_s: float = 60.0) -> tuple[int, dict[str, Any]]:
        """Return the status of a page, 0 where nobody answers in time, and its object."""
        try:
            with urllib.request.urlopen(self.url(path), timeout=within_s) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
        except OSError:
            return 0, {}

    def url(self, path: str) -> str:
        """Return the address of a page."""
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def monitored(own_redis_url: str, tmp_path: Path) -> Monitored:
    with connect(own_redis_url) as client:
        client.config_set("maxmemory", MAX_MEMORY)
    return Monitored(Composition(own_redis_url, tmp_path, {}))


@pytest.fixture
def producer(monitored: Monitored) -> Generator[Celery]:
    with Celery("producer", broker=monitored.composition.redis_url) as app:
        yield app


def announce(producer: Celery, server_id: str, url: str = "http://127.0.0.1:9/mcp") -> None:
    producer.send_task(ACCEPT_EVENT, args=[up(server_id, url=url).model_dump(mode="json")], queue="toolscale")


def turns_red(monitored: Monitored) -> float:
    """Return the seconds until the worker says that it is not ready."""
    began = time.monotonic()
    eventually(lambda: monitored.ready() != 200, what="not ready")
    return time.monotonic() - began


def test_a_worker_shows_what_it_did_and_what_waits(monitored: Monitored, producer: Celery) -> None:
    pages = one_page(tool("read_file"), tool("write_file"))
    with (
        scripted_http(lambda exchange: exchange.play(pages)) as server,
        closing(Intents(RedisStorage(connect(monitored.composition.redis_url)), RetryPolicy(1.0, 4.0))) as intents,
        monitored.worker() as worker,
    ):
        announce(producer, "files", server.url)
        eventually(lambda: (found := intents.intent("files")) and not found.is_lagging, what=worker.output())
        wanted = 'toolscale_reconciles_total{result="changed"}'
        eventually(lambda: scraped(monitored.url("/metrics"))[wanted])

        found = scraped(monitored.url("/metrics"))

    assert found['toolscale_events_total{outcome="recorded"}'] == 1
    assert found["toolscale_reconcile_seconds_count"] == 1
    assert found['toolscale_task_wait_seconds_count{task="toolscale.reconcile_server"}'] >= 1  # or said again
    assert (found["toolscale_reconciles_due"], found["toolscale_intents_up"]) == (0, 1)
    assert found['toolscale_queue_messages{state="waiting"}'] == 0
    assert found["toolscale_redis_memory_bytes"] > 500_000
    assert found["toolscale_redis_memory_limit_bytes"] == MAX_MEMORY


@pytest.mark.slow
def test_a_worker_that_no_longer_consumes_turns_red(monitored: Monitored, producer: Celery) -> None:
    with monitored.worker() as worker, monitored.composition.beat():
        eventually(lambda: producer.control.cancel_consumer("toolscale", reply=True, timeout=2), what="cancelled")

        took_s = turns_red(monitored)

        status, said = monitored.readiness()
        assert worker.process.poll() is None
        assert status == 503, said
        assert "no task has ended for" in said["checks"]["tasks"]
        assert (said["checks"]["broker"], said["checks"]["index"]) == ("ok", "ok")
        found = scraped(monitored.url("/metrics"))
        assert found['toolscale_queue_messages{state="waiting"}'] > 0
        assert found["toolscale_queue_oldest_seconds"] > took_s / 2

        eventually(lambda: producer.control.add_consumer("toolscale", reply=True, timeout=2), what="added")
        eventually(lambda: monitored.ready() == 200, what="ready again")


@pytest.mark.slow
def test_a_worker_that_is_stuck_while_the_broker_is_well_asks_for_a_restart(
    monitored: Monitored, producer: Celery
) -> None:
    with monitored.worker(app="tests.support.impatient_worker") as worker, monitored.composition.beat():
        assert monitored.answer("/healthz") == (200, {"status": "alive"})
        eventually(lambda: producer.control.cancel_consumer("toolscale", reply=True, timeout=2), what="cancelled")

        turns_red(monitored)
        eventually(lambda: monitored.answer("/healthz")[0] == 503, what="stuck")

        stuck = monitored.answer("/healthz")[1]
        assert stuck["status"] == "stuck"
        assert "no task has ended for" in stuck["reason"]
        worker.wait_for("process_stuck")
        assert worker.process.poll() is None

        with connect(monitored.composition.redis_url) as redis:
            redis.shutdown(nosave=True)
        eventually(lambda: monitored.answer("/healthz")[0] == 200, what="alive without a broker")
        assert monitored.ready() == 503


@pytest.mark.slow
def test_a_frozen_pool_behind_a_living_worker_turns_red(monitored: Monitored, producer: Celery) -> None:
    with monitored.worker("--pool", "processes", "--concurrency", "4") as worker, monitored.composition.beat():
        children = psutil.Process(worker.process.pid).children()
        for child in children:
            child.send_signal(signal.SIGSTOP)
        try:
            turns_red(monitored)
            status, said = monitored.readiness()
        finally:
            for child in children:
                child.send_signal(signal.SIGCONT)

    assert status == 503
    assert "no task has ended for" in said["checks"]["tasks"]


@pytest.mark.slow
def test_a_worker_shows_how_it_follows_the_operators_file(monitored: Monitored, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}', encoding="utf-8")
    followed_at = 'toolscale_source_reconciled_timestamp_seconds{source="toolscale/mcp.json"}'
    with monitored.worker(TOOLSCALE_MCP_CONFIG=str(config)) as worker:
        eventually(lambda: scraped(monitored.url("/metrics")).get(followed_at), what=worker.output())
        started_at = scraped(monitored.url("/metrics"))[followed_at]
        eventually(lambda: scraped(monitored.url("/metrics"))[followed_at] > started_at, what=worker.output())
        config.write_text("no JSON", encoding="utf-8")
        eventually(lambda: monitored.readiness()[1]["mcp_json"]["problem"], what=worker.output())

        unreadable = monitored.readiness()
    assert unreadable[0] == 200
    assert unreadable[1]["mcp_json"]["servers"] == 0
    assert "mcp.json" in unreadable[1]["mcp_json"]["problem"]


@pytest.mark.slow
def test_beat_shows_its_last_tick_and_turns_red_when_they_reach_no_broker(monitored: Monitored) -> None:
    metrics, ticked_at = monitored.url("/metrics"), "toolscale_beat_last_tick_timestamp_seconds"
    with monitored.composition.beat(TOOLSCALE_METRICS_PORT=str(monitored.port)) as beat:
        beat.wait_for("metrics_port_opened")
        started_at = scraped(metrics)[ticked_at]
        eventually(lambda: scraped(metrics)[ticked_at] > started_at, what=beat.output())
        assert monitored.readiness() == (200, {"status": "ready", "checks": {"broker": "ok", "ticks": "ok"}})

        with connect(monitored.composition.redis_url) as redis:
            redis.shutdown(nosave=True)
        eventually(lambda: monitored.check("ticks") != "ok", what="not ready")

        assert beat.process.poll() is None
        assert "not done for" in monitored.check("ticks")
        assert monitored.answer("/healthz")[0] == 200
        assert time.time() - scraped(metrics)[ticked_at] > 10
    assert beat.process.returncode == 0


@pytest.mark.slow
def test_a_port_in_use_costs_a_worker_its_metrics_and_nothing_else(monitored: Monitored) -> None:
    with monitored.worker(), monitored.composition.worker("second", TOOLSCALE_METRICS_PORT=str(monitored.port)) as two:
        two.wait_for("metrics_port_failed")
        assert two.process.poll() is None
