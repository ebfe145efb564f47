"""The Kubernetes watcher against a scripted API server over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.support.kubernetes_api import ScriptedKubernetes, kubeconfig, scripted_kubernetes
from tests.support.metrics import scraped
from tests.support.ports import free_port
from tests.support.present import present
from tests.support.processes import Composition
from tests.support.waiting import eventually
from tests.support.watched import generation, running, watcher
from workers.sources.announcer import SourceUnavailable, Watcher
from workers.sources.kubernetes import MCP_SERVERS, RESOURCE_KINDS, SERVICES, KubernetesSource, ResourceKind

pytestmark = pytest.mark.process

LABEL = "toolscale.dev/server"

client = pytest.importorskip("kubernetes.client", reason="the extra `kubernetes` is not installed")


@pytest.fixture
def intents(tmp_path: Path) -> Generator[Intents]:
    with closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as store:
        yield store


@pytest.fixture
def cluster() -> Generator[ScriptedKubernetes]:
    with scripted_kubernetes() as scripted:
        yield scripted


@pytest.fixture
def watched(cluster: ScriptedKubernetes, intents: Intents) -> Watcher:
    return watcher(source(cluster), intents)


def source(cluster: ScriptedKubernetes, kind: ResourceKind = SERVICES, selector: str = "") -> KubernetesSource:
    configuration = client.Configuration(host=cluster.url)
    configuration.retries = False
    return KubernetesSource(kind, lambda: client.ApiClient(configuration), selector=selector)


def test_all_pages_are_listed_and_annotated_services_announced(
    cluster: ScriptedKubernetes, intents: Intents, watched: Watcher
) -> None:
    cluster.put("a", server="docs", port="mcp", path="sse", transport="sse", groups="x,y", credential_ref="key")
    cluster.put("b")
    cluster.put("c", server="files")
    cluster.put("d", server="elsewhere", url="https://mcp.example.org/mcp")

    watched.announce()

    assert running(intents) == {
        "docs": "http://a.prod.svc:9000/sse",
        "elsewhere": "https://mcp.example.org/mcp",
        "files": "http://c.prod.svc:80/mcp",
    }
    intent = present(intents.intent("docs"))
    assert intent.source == "toolscale/kubernetes"
    assert intent.announcement.transport == "sse"
    assert intent.announcement.groups == {"x", "y"}
    assert intent.announcement.credential_ref == "key"


def test_services_come_change_and_go(cluster: ScriptedKubernetes, intents: Intents, watched: Watcher) -> None:
    found: list[dict[str, str | None]] = []
    changes: list[dict[str, str]] = [{"server": "docs"}, {"server": "docs", "port": "9000"}, {}, {"server": "docs"}]
    for change in changes:
        cluster.put("a", labels=None, generation=1, document=None, **change)
        watched.announce()
        found.append(running(intents))
    del cluster.objects["a"]
    watched.announce()

    at = "http://a.prod.svc:{}/mcp".format
    assert found == [{"docs": at(80)}, {"docs": at(9000)}, {}, {"docs": at(80)}]
    assert running(intents) == {}


def test_an_object_is_announced_again_when_its_specification_changed_and_not_before(
    cluster: ScriptedKubernetes, intents: Intents, watched: Watcher
) -> None:
    cluster.put("a", server="docs")
    watched.announce()
    cluster.put("other", {"spec": {"ports": [{"port": 8000}]}})
    watched.announce()
    assert generation(intents, "docs") == 1

    cluster.put("a", server="docs", generation=2)
    watched.announce()

    assert generation(intents, "docs") == 2


def test_only_selected_services_are_sent_by_the_api_server(cluster: ScriptedKubernetes, intents: Intents) -> None:
    cluster.put("a", labels={LABEL: "true"}, server="docs")
    for number in range(10):
        cluster.put(f"other-{number}", server=f"unlabelled-{number}")

    watcher(source(cluster, selector=f"{LABEL}=true"), intents).announce()

    assert set(running(intents)) == {"docs"}
    assert cluster.sent == 1


@pytest.mark.parametrize("is_down", [True, False], ids=["away", "in the middle of a list"])
def test_a_cluster_that_fails_takes_nothing_down(
    cluster: ScriptedKubernetes, intents: Intents, watched: Watcher, *, is_down: bool
) -> None:
    for name in "abc":
        cluster.put(name, server=f"docs-{name}")
    watched.announce()

    cluster.is_down, cluster.fails_after = is_down, 2
    with pytest.raises(SourceUnavailable):
        watched.announce()
    assert len(running(intents)) == 3

    cluster.is_down, cluster.fails_after = False, 1_000
    del cluster.objects["c"]
    watched.announce()
    assert set(running(intents)) == {"docs-a", "docs-b"}
    assert generation(intents, "docs-a") == 1


def test_a_toolhive_server_is_announced_while_it_runs(intents: Intents) -> None:
    with scripted_kubernetes(MCP_SERVERS.path) as cluster:
        watched = watcher(source(cluster, MCP_SERVERS), intents)
        cluster.put("fetch", {"status": {"phase": "Pending", "url": ""}})
        watched.announce()
        assert running(intents) == {}

        cluster.put("fetch", {"status": {"phase": "Running", "url": "http://mcp-fetch.prod.svc:8080/sse#fetch"}})
        watched.announce()
        assert running(intents) == {"prod/fetch": "http://mcp-fetch.prod.svc:8080/sse"}
        intent = present(intents.intent("prod/fetch"))
        assert (intent.source, intent.announcement.transport) == ("toolscale/toolhive", "sse")

        cluster.put("fetch", {"status": {"phase": "Failed", "url": "http://mcp-fetch.prod.svc:8080/sse"}})
        watched.announce()
        assert running(intents) == {}


def test_a_cluster_without_toolhive_has_no_servers_of_it(cluster: ScriptedKubernetes, intents: Intents) -> None:
    with scripted_kubernetes(MCP_SERVERS.path) as before:
        before.put("fetch", {"status": {"phase": "Running", "url": "http://mcp-fetch.prod.svc:8080/mcp"}})
        watcher(source(before, MCP_SERVERS), intents).announce()
        assert "prod/fetch" in running(intents)

    watcher(source(cluster, MCP_SERVERS), intents).announce()

    assert running(intents) == {}


def test_an_annotation_that_cannot_be_used_does_not_cost_the_others(
    cluster: ScriptedKubernetes, intents: Intents, watched: Watcher
) -> None:
    cluster.put("a", server="no way")
    cluster.put("b", server="nowhere", port="no-such-port")
    cluster.put("c", {"spec": {"ports": "broken"}}, server="broken")
    cluster.put("d", server="good")

    watched.announce()

    assert set(running(intents)) == {"good"}


def test_the_command_follows_the_kubeconfigs_cluster_until_it_is_stopped(
    cluster: ScriptedKubernetes, tmp_path: Path
) -> None:
    cluster.put("a", labels={LABEL: "docs"}, server="docs")
    cluster.put("b", server="unlabelled")
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(kubeconfig(cluster.url)), encoding="utf-8")
    port = free_port()
    composition = Composition(
        "", tmp_path, {"REDIS_URL": "", "KUBECONFIG": str(config), "TOOLSCALE_METRICS_PORT": str(port)}
    )
    with (
        composition.run("watch", "-m", "toolscale", "watch", "kubernetes", "--selector", LABEL) as command,
        closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as intents,
    ):
        eventually(lambda: set(running(intents)) == {"docs"}, what=command.output())
        page = f"http://127.0.0.1:{port}/metrics"
        found = scraped(page)
        for kind in RESOURCE_KINDS:
            assert found[f'toolscale_source_reconciled_timestamp_seconds{{source="{kind.source}"}}']
        assert found['toolscale_events_total{outcome="recorded"}'] == 1
        command.process.terminate()

        assert command.process.wait(60) == 130
