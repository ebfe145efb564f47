"""The Docker watcher against a scripted Docker over real HTTP."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.catalog import DOCKER_SOURCE, OPERATOR_SOURCE
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.support.builders import up
from tests.support.docker_api import ScriptedDocker, scripted_docker
from tests.support.metrics import shown
from tests.support.ports import free_port
from tests.support.present import present
from tests.support.processes import Composition
from tests.support.waiting import eventually
from tests.support.watched import generation, running, watcher
from workers.emit import Emitter
from workers.sources.announcer import SourceUnavailable, Watcher
from workers.sources.docker import DockerSource

pytestmark = pytest.mark.process

pytest.importorskip("docker", reason="the extra `docker` is not installed")


@pytest.fixture
def intents(tmp_path: Path) -> Generator[Intents]:
    with closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as store:
        yield store


@pytest.fixture
def docker() -> Generator[ScriptedDocker]:
    with scripted_docker() as scripted:
        yield scripted


@pytest.fixture
def watched(docker: ScriptedDocker, intents: Intents) -> Watcher:
    return watcher(DockerSource(docker.environ), intents)


def test_what_runs_is_announced_and_what_is_gone_is_taken_down_by_another_watcher_too(
    docker: ScriptedDocker, intents: Intents, watched: Watcher
) -> None:
    docker.start("b", server="old", port="80")
    watched.announce()
    assert set(running(intents)) == {"old"}
    docker.stop("b")
    docker.start("a", server="docs", port="9000", path="sse", transport="sse", groups="x, y", credential_ref="key")

    watcher(DockerSource(docker.environ), intents).announce()

    assert running(intents) == {"docs": "http://172.18.0.2:9000/sse"}
    intent = present(intents.intent("docs"))
    assert intent.source == DOCKER_SOURCE
    assert intent.announcement.transport == "sse"
    assert intent.announcement.groups == {"x", "y"}
    assert intent.announcement.credential_ref == "key"


@pytest.mark.parametrize(
    "change", [{"StartedAt": "2026-01-01T00:00:01Z"}, {"Health": {"Status": "healthy"}}], ids=["restarted", "healthy"]
)
def test_a_container_that_starts_again_or_becomes_healthy_is_reconciled_again(
    docker: ScriptedDocker, intents: Intents, watched: Watcher, change: dict[str, object]
) -> None:
    docker.start("a", server="docs", port="9000")
    watched.announce()
    watched.announce()
    assert generation(intents, "docs") == 1

    docker.states["a" * 12] |= change
    watched.announce()

    assert generation(intents, "docs") == 2


def test_a_container_that_ends_after_the_list_does_not_cost_the_others(
    docker: ScriptedDocker, intents: Intents, watched: Watcher
) -> None:
    docker.start("a", server="gone", port="9000")
    docker.start("b", server="docs", port="9000")
    docker.vanishing.add("a")

    watched.announce()

    assert "docs" in running(intents)


def test_a_docker_that_is_away_takes_nothing_down(docker: ScriptedDocker, intents: Intents, watched: Watcher) -> None:
    docker.start("a", server="docs", port="9000")
    watched.announce()

    docker.is_down = True
    with pytest.raises(SourceUnavailable):
        watched.announce()
    assert set(running(intents)) == {"docs"}
    docker.is_down = False
    watched.announce()

    assert generation(intents, "docs") == 1


def test_a_label_that_cannot_be_used_does_not_cost_the_others(
    docker: ScriptedDocker, intents: Intents, watched: Watcher
) -> None:
    docker.start("a", server="no way", port="9000")
    docker.start("b", server="nowhere")
    docker.start("c", server="good", port="9000")

    watched.announce()

    assert set(running(intents)) == {"good"}


def test_a_server_outlives_one_of_its_replicas(docker: ScriptedDocker, intents: Intents, watched: Watcher) -> None:
    docker.start("a", server="docs", port="9000", address="172.18.0.2")
    docker.start("b", server="docs", port="9000", address="172.18.0.3")
    watched.announce()
    assert running(intents) == {"docs": "http://172.18.0.2:9000/mcp"}

    docker.stop("a")
    watched.announce()

    assert running(intents) == {"docs": "http://172.18.0.3:9000/mcp"}


def test_servers_of_other_sources_and_scopes_are_left_alone(docker: ScriptedDocker, intents: Intents) -> None:
    Emitter(intents, lambda _: None, 5.0).emit(up("someone-elses"))
    docker.start("a", server="here", port="9000")
    watcher(DockerSource(docker.environ, "one"), intents).announce()

    with scripted_docker() as other:
        second = watcher(DockerSource(other.environ, "two"), intents)
        other.start("b", server="there", port="9000")
        second.announce()
        assert set(running(intents)) == {"here", "there", "someone-elses"}
        other.stop("b")
        second.announce()

    assert set(running(intents)) == {"here", "someone-elses"}


def test_the_command_follows_docker_until_it_is_stopped(docker: ScriptedDocker, tmp_path: Path) -> None:
    docker.start("a", server="docs", port="9000")
    port = free_port()
    composition = Composition("", tmp_path, {**docker.environ, "REDIS_URL": "", "TOOLSCALE_METRICS_PORT": str(port)})
    with (
        composition.run("watch", "-m", "toolscale", "watch", "docker") as command,
        closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as intents,
    ):
        eventually(lambda: set(running(intents)) == {"docs"}, what=command.output())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as ready:
            assert json.loads(ready.read())["checks"] == {"broker": "ok", "toolscale/docker": "ok"}
        docker.is_down = True
        command.wait_for("source_reconcile_failed")
        docker.is_down = False
        docker.start("b", server="later", port="9000")
        eventually(lambda: set(running(intents)) == {"docs", "later"}, what=command.output())
        command.process.terminate()

        assert command.process.wait(60) == 130
    assert command.output().count("source_reconcile_failed") == 1


def test_the_metric_has_the_time_of_the_last_list_that_was_complete(docker: ScriptedDocker, intents: Intents) -> None:
    def reconciled_at() -> float:
        return shown()['toolscale_source_reconciled_timestamp_seconds{source="toolscale/docker"}']

    beats: list[None] = []
    watched = watcher(DockerSource(docker.environ), intents, beat=lambda: beats.append(None))
    started_at = reconciled_at()
    watched.announce()
    announced_at = reconciled_at()

    docker.is_down = True
    with pytest.raises(SourceUnavailable):
        watched.announce()

    assert started_at < announced_at == reconciled_at()
    assert len(beats) == 1


def test_a_label_with_the_id_of_a_server_of_the_file_changes_nothing_and_the_others_are_announced(
    docker: ScriptedDocker, intents: Intents, watched: Watcher
) -> None:
    of_the_file = up("payments").model_copy(update={"source": OPERATOR_SOURCE})
    intents.record(of_the_file, due_in_s=60)
    docker.start("a", server="payments", port="9000", groups="everyone")
    docker.start("b", server="docs", port="9000")

    with capture_logs() as logs:
        watched.announce()

    intent = present(intents.intent("payments"))
    assert (intent.announcement, intent.status) == (of_the_file.data, "running")
    assert [(log["origin"], log["server"]) for log in logs if log["event"] == "server_not_announced"] == [
        (DOCKER_SOURCE, "payments")
    ]
    assert "docs" in running(intents)
