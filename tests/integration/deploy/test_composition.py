"""docker-compose.yml without Docker: its services as processes, each with its own command, environment and check."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import yaml

from shared.service.redis import connect
from tests.support.builders import up
from tests.support.composed import OURS, ROOT, Composed, path
from tests.support.docker_api import scripted_docker
from tests.support.events_api import TOKEN, Producer
from tests.support.kubernetes_api import kubeconfig, scripted_kubernetes
from tests.support.metrics import scraped
from tests.support.qdrant_server import emptied_qdrant, own_qdrant_url
from tests.support.redis_server import redis_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.redis
pytest.importorskip("docker", reason="the extra `docker` is not installed")
pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

QDRANT_URL = own_qdrant_url()  # other tests do not see it
HEALTHY_WITHIN_S = 120.0
PASSWORD = "of-redis"


def read_by_prometheus() -> list[tuple[str, int]]:
    """Return each service that Prometheus reads, and the port."""
    document = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    found = [entry for job in document["scrape_configs"] for entry in job["dns_sd_configs"]]
    return [(name, entry["port"]) for entry in found for name in entry["names"]]


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Composed]:
    """All services of all profiles, running; in the place of Docker and Kubernetes, scripted ones."""
    directory = tmp_path_factory.mktemp("composed")
    with ExitStack() as running:
        docker = running.enter_context(scripted_docker())
        cluster = running.enter_context(scripted_kubernetes())
        kubernetes = directory / "kubeconfig"
        kubernetes.write_text(json.dumps(kubeconfig(cluster.url)), encoding="utf-8")
        given = {
            "TOOLSCALE_EVENTS_TOKEN": TOKEN,
            "FLOWER_BASIC_AUTH": "ops:the-password",
            "WATCH_DOCKER_HOST": docker.environ["DOCKER_HOST"],
            "WATCH_KUBECONFIG": str(kubernetes),
        }
        redis_url = running.enter_context(redis_server(directory))
        with connect(redis_url) as redis:
            redis.config_set("requirepass", PASSWORD)
        redis_url = redis_url.replace("redis://", f"redis://:{PASSWORD}@")
        if QDRANT_URL:
            running.enter_context(pytest.MonkeyPatch.context()).setenv("QDRANT_URL", QDRANT_URL)
            running.enter_context(emptied_qdrant())
        composition = Composed(directory, redis_url, QDRANT_URL, given)
        for name in OURS:
            running.enter_context(composition.running(name))
        yield composition


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_a_service_that_has_its_own_environment_alone_becomes_healthy(composed: Composed, name: str) -> None:
    wait_until_healthy(composed, name)

    lines = [json.loads(line) for line in composed.started[name].output().splitlines() if line.startswith("{")]
    assert [line for line in lines if line["level"] in {"error", "critical"}] == []


def test_an_event_over_the_events_api_makes_the_worker_list_the_query_service(composed: Composed) -> None:
    for name in ("events-api", "query", "worker"):
        wait_until_healthy(composed, name)
    door = Producer(f"http://127.0.0.1:{composed.port('events-api', 8766)}")
    event = up("toolscale", url=composed.here("worker", "http://query:8765/mcp")).model_dump(mode="json")

    assert door.post(event).status == 202

    looks = f"http://127.0.0.1:{composed.port('worker', 9464)}/metrics"
    worker = composed.started["worker"]
    eventually(lambda: 'toolscale_reconciles_total{result="changed"}' in scraped(looks), what=worker.output())
    assert scraped(looks)['toolscale_tool_changes_total{change="added"}'] > 4


@pytest.mark.slow
@pytest.mark.parametrize(("host", "status"), [("query:8765", 200), ("127.0.0.1:8765", 200), ("elsewhere:8765", 421)])
def test_the_query_service_answers_by_its_name_in_the_network(composed: Composed, host: str, status: int) -> None:
    wait_until_healthy(composed, "query")

    assert asked(composed.port("query", 8765), "POST", "/mcp", host, PING) == status


@pytest.mark.slow
@pytest.mark.parametrize(("name", "port"), read_by_prometheus())
def test_prometheus_reads_metrics_at_an_address_and_without_a_token(composed: Composed, name: str, port: int) -> None:
    wait_until_healthy(composed, name)

    # it looks names up, and asks at the addresses
    assert asked(composed.port(name, port), "GET", "/metrics", f"172.18.0.5:{port}") == 200


@pytest.mark.skipif(not QDRANT_URL, reason="needs a Qdrant server of its own at QDRANT_URL")
def test_the_path_to_a_chart_that_is_written_down_leads_there(composed: Composed) -> None:
    for name in ("query", "worker", "beat"):
        wait_until_healthy(composed, name)
    _, emit, listed, find = path()

    assert composed.execute(emit).returncode == 0
    eventually(lambda: re.search(r"toolscale +listed", composed.execute(listed).stdout), what="listed")
    found = composed.execute(find)

    assert found.returncode == 0, found.stderr
    metrics = scraped(f"http://127.0.0.1:{composed.port('query', 8765)}/metrics")
    assert metrics['toolscale_tokens_saved_total{encoding="cl100k_base"}'] > 0


def wait_until_healthy(composed: Composed, name: str) -> None:
    eventually(lambda: composed.is_healthy(name), HEALTHY_WITHIN_S, what=composed.started[name].output())


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def asked(port: int, method: str, path: str, host: str, body: Any = None) -> int:
    """Return the status of an answer to a request by this name."""
    headers = {"Host": host, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        with connection.getresponse() as response:
            return response.status
