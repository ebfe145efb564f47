"""The Docker watcher against a Docker that cuts its stream, repeats its events, and loses them."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from shared.catalog import DOCKER_SOURCE, OPERATOR_SOURCE
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.support.builders import up
from tests.support.docker_api import ScriptedDocker, scripted_docker
from tests.support.metrics import scraped, shown
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.waiting import eventually
from tests.support.watched import generation, running, watching
from workers.emit import Emitter
from workers.sources.docker import DockerSource
from workers.sources.metrics import SourceMetrics

pytest.importorskip("docker", reason="the extra `docker` is not installed")


@pytest.fixture
def intents(tmp_path: Path) -> Generator[Intents]:
    with closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as store:
        yield store


@pytest.fixture
def docker() -> Generator[ScriptedDocker]:
    with scripted_docker() as scripted:
        yield scripted


def connected(docker: ScriptedDocker) -> bool:
    return bool(docker.streams)


def test_what_runs_at_the_start_is_announced_and_what_is_gone_is_taken_down(
    docker: ScriptedDocker, intents: Intents
) -> None:
    docker.start("b", server="old", port="80")
    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: set(running(intents)) == {"old"})
    docker.stop("b")
    docker.start("a", server="docs", port="9000", path="sse", transport="sse", groups="x, y", credential_ref="key")

    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: running(intents) == {"docs": "http://172.18.0.2:9000/sse"})

    intent = intents.intent("docs")
    assert intent is not None
    assert intent.source == DOCKER_SOURCE
    assert intent.announcement.transport == "sse"
    assert intent.announcement.groups == {"x", "y"}
    assert intent.announcement.credential_ref == "key"


def test_containers_come_and_go_by_events(docker: ScriptedDocker, intents: Intents) -> None:
    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: connected(docker))

        docker.start("a", server="docs", url="http://docs.example.org/mcp")
        eventually(lambda: running(intents) == {"docs": "http://docs.example.org/mcp"})

        docker.stop("a")
        eventually(lambda: running(intents) == {})


def test_a_restarted_container_is_reconciled_again(docker: ScriptedDocker, intents: Intents) -> None:
    docker.start("a", server="docs", port="9000")
    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: connected(docker) and generation(intents, "docs") == 1)

        docker.tell("start", "a")

        eventually(lambda: generation(intents, "docs") == 2)


def test_repeated_events_of_docker_cause_no_further_announcement(docker: ScriptedDocker, intents: Intents) -> None:
    docker.start("a", server="docs", port="9000")
    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: connected(docker) and running(intents))
        before = docker.listings

        for _ in range(20):
            docker.tell("exec_start", "a")
        docker.start("b", server="last", port="9000")
        eventually(lambda: "last" in running(intents))

        assert docker.listings > before
        assert generation(intents, "docs") == 1


def test_what_is_missed_while_the_stream_is_cut_is_found_after_reconnection(
    docker: ScriptedDocker, intents: Intents
) -> None:
    docker.start("a", server="gone", port="9000")
    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: connected(docker) and "gone" in running(intents))

        docker.is_down = True
        docker.cut_streams()
        docker.stop("a", tells=False)
        docker.start("b", server="new", port="9000", tells=False)
        docker.is_down = False

        eventually(lambda: set(running(intents)) == {"new"})


def test_an_event_that_is_lost_on_a_stream_that_holds_is_made_up_for(docker: ScriptedDocker, intents: Intents) -> None:
    with watching(DockerSource(docker.environ), intents, relist_s=0.1):
        eventually(lambda: connected(docker))

        docker.start("a", server="docs", port="9000", tells=False)

        eventually(lambda: set(running(intents)) == {"docs"})


def test_a_docker_that_is_away_takes_nothing_down(docker: ScriptedDocker, intents: Intents) -> None:
    docker.start("a", server="docs", port="9000")
    with watching(DockerSource(docker.environ), intents, relist_s=0.05):
        eventually(lambda: connected(docker) and "docs" in running(intents))

        docker.is_down = True
        docker.cut_streams()
        docker.start("b", server="later", port="9000", tells=False)
        assert set(running(intents)) == {"docs"}
        docker.is_down = False

        eventually(lambda: set(running(intents)) == {"docs", "later"})
        assert generation(intents, "docs") == 1


def test_a_label_that_cannot_be_used_does_not_cost_the_others(docker: ScriptedDocker, intents: Intents) -> None:
    docker.start("a", server="no way", port="9000")
    docker.start("b", server="nowhere")
    docker.start("c", server="good", port="9000")

    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: set(running(intents)) == {"good"})


def test_a_server_outlives_one_of_its_replicas(docker: ScriptedDocker, intents: Intents) -> None:
    docker.start("a", server="docs", port="9000", address="172.18.0.2")
    docker.start("b", server="docs", port="9000", address="172.18.0.3")
    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: connected(docker) and running(intents) == {"docs": "http://172.18.0.2:9000/mcp"})

        docker.stop("a")

        eventually(lambda: running(intents) == {"docs": "http://172.18.0.3:9000/mcp"})


def test_servers_of_other_sources_are_left_alone(docker: ScriptedDocker, intents: Intents) -> None:
    Emitter(intents, lambda _: None, 5.0).emit(up("someone-elses"))
    docker.start("a", server="docs", port="9000")

    with watching(DockerSource(docker.environ), intents):
        eventually(lambda: "docs" in running(intents))

    assert set(running(intents)) == {"docs", "someone-elses"}


def test_two_watchers_with_a_scope_each_leave_the_other_s_servers_alone(
    docker: ScriptedDocker, intents: Intents
) -> None:
    docker.start("a", server="here", port="9000")
    with watching(DockerSource(docker.environ, "one"), intents):
        eventually(lambda: set(running(intents)) == {"here"})

    with scripted_docker() as other:
        other.start("b", server="there", port="9000")
        with watching(DockerSource(other.environ, "two"), intents, relist_s=0.05):
            eventually(lambda: set(running(intents)) == {"here", "there"})

            other.stop("b")
            eventually(lambda: set(running(intents)) == {"here"})


def test_the_command_follows_docker_until_it_is_stopped(docker: ScriptedDocker, tmp_path: Path) -> None:
    docker.start("a", server="docs", port="9000")
    composition = Composition("", tmp_path, {**docker.environ, "REDIS_URL": ""})
    with (
        composition.run("watch", "-m", "toolscale", "watch", "docker") as watcher,
        closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as intents,
    ):
        eventually(lambda: set(running(intents)) == {"docs"}, what=watcher.output())
        watcher.process.terminate()

        assert watcher.process.wait(60) == 130


def test_a_watcher_shows_whether_it_follows_its_source_and_what_it_made_of_it(
    docker: ScriptedDocker, tmp_path: Path
) -> None:
    docker.start("a", server="docs", port="9000")
    port = free_port()
    composition = Composition("", tmp_path, {**docker.environ, "REDIS_URL": "", "TOOLSCALE_METRICS_PORT": str(port)})
    of_docker, page = '{source="toolscale/docker"}', f"http://127.0.0.1:{port}/metrics"
    connected_now = f"toolscale_source_connected{of_docker}"
    reconnected = f"toolscale_source_connections_total{of_docker}"
    recorded = 'toolscale_events_total{outcome="recorded",type="up"}'
    with composition.run("watch", "-m", "toolscale", "watch", "docker") as watcher:
        watcher.wait_for("metrics_port_opened")
        eventually(lambda: {connected_now, recorded} <= scraped(page).keys(), what=watcher.output())
        before = scraped(page)

        docker.is_down = True
        docker.cut_streams()
        eventually(lambda: scraped(page)[connected_now] == 0)
        docker.is_down = False
        eventually(lambda: scraped(page)[reconnected] == 2, what=watcher.output())

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as ready:
            assert json.loads(ready.read())["checks"] == {"broker": "ok", "toolscale/docker": "ok"}
    assert (before[connected_now], before[recorded]) == (1, 1)
    assert before['toolscale_source_lists_total{result="reconciled",source="toolscale/docker"}'] >= 1
    assert before[reconnected] == 1
    assert 0 <= before[f"toolscale_source_reconciled_seconds{of_docker}"] < 60


def test_a_source_that_does_not_answer_is_counted_and_grows_old(docker: ScriptedDocker, intents: Intents) -> None:
    registry = CollectorRegistry()
    now_s = itertools.count(step=100.0)
    metrics = SourceMetrics(registry, clock=lambda: next(now_s))
    registry.register(metrics)
    docker.is_down = True

    failed = 'toolscale_source_lists_total{result="failed",source="toolscale/docker"}'
    with watching(DockerSource(docker.environ), intents, metrics=metrics):
        eventually(lambda: shown(registry).get(failed, 0) >= 2)

    found = shown(registry)
    assert found['toolscale_source_connected{source="toolscale/docker"}'] == 0
    assert found['toolscale_source_reconciled_seconds{source="toolscale/docker"}'] >= 100


def test_a_label_with_the_id_of_a_server_of_the_file_changes_nothing_and_the_others_are_announced(
    docker: ScriptedDocker, intents: Intents
) -> None:
    of_the_file = up("payments").model_copy(update={"source": OPERATOR_SOURCE})
    intents.record(of_the_file, due_in_s=60)
    docker.start("a", server="payments", port="9000", groups="everyone")
    docker.start("b", server="docs", port="9000")

    with capture_logs() as logs, watching(DockerSource(docker.environ), intents):
        eventually(lambda: "docs" in running(intents))

    intent = intents.intent("payments")
    assert intent is not None
    assert (intent.announcement, intent.status) == (of_the_file.data, "running")
    assert DOCKER_SOURCE in (intent.conflict or "")
    assert [DOCKER_SOURCE in letter.body for letter in intents.dead_letters(10)] == [True]
    assert [(log["origin"], log["server"]) for log in logs if log["event"] == "server_not_announced"] == [
        (DOCKER_SOURCE, "payments")
    ]
