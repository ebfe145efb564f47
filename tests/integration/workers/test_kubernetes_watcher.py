"""The Kubernetes watcher against an API server that ends watches, cuts connections, and lets versions expire."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.support.kubernetes_api import ScriptedKubernetes, kubeconfig, scripted_kubernetes
from tests.support.metrics import scraped, shown
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.waiting import eventually
from tests.support.watched import generation, running, watching
from workers.sources.announcer import Running
from workers.sources.kubernetes import MCP_SERVERS, RESOURCE_KINDS, SERVICES, ResourceKind
from workers.sources.kubernetes_watch import KubernetesSource
from workers.sources.metrics import SourceMetrics
from workers.sources.watcher import Announcements

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


def source(
    cluster: ScriptedKubernetes, kind: ResourceKind = SERVICES, selector: str = "", least_watch_s: float = 1.0
) -> KubernetesSource:
    configuration = client.Configuration(host=cluster.url)
    configuration.retries = False
    return KubernetesSource(
        kind, lambda: client.ApiClient(configuration), selector=selector, least_watch_s=least_watch_s
    )


def reconciled(registry: CollectorRegistry) -> float:
    """Return how many times the source was listed and compared with the intents."""
    name = 'toolscale_source_lists_total{result="reconciled",source="toolscale/kubernetes"}'
    return shown(registry).get(name, 0)


def has_sent_more(cluster: ScriptedKubernetes, sent: int) -> bool:
    return cluster.sent > sent


def test_all_pages_are_listed_and_annotated_services_announced(cluster: ScriptedKubernetes, intents: Intents) -> None:
    cluster.put("a", server="docs", port="mcp", path="sse", transport="sse", groups="x,y", credential_ref="key")
    cluster.put("b")
    cluster.put("c", server="files")
    cluster.put("d", server="elsewhere", url="https://mcp.example.org/mcp")

    with watching(source(cluster), intents):
        eventually(lambda: len(running(intents)) == 3)

    assert running(intents) == {
        "docs": "http://a.prod.svc:9000/sse",
        "elsewhere": "https://mcp.example.org/mcp",
        "files": "http://c.prod.svc:80/mcp",
    }
    intent = intents.intent("docs")
    assert intent is not None
    assert intent.source == "toolscale/kubernetes"
    assert intent.announcement.transport == "sse"
    assert intent.announcement.groups == {"x", "y"}
    assert intent.announcement.credential_ref == "key"


def test_services_come_change_and_go_by_the_watch_alone(cluster: ScriptedKubernetes, intents: Intents) -> None:
    with watching(source(cluster), intents):
        eventually(lambda: cluster.watched_from)

        cluster.put("a", server="docs")
        eventually(lambda: running(intents) == {"docs": "http://a.prod.svc:80/mcp"})
        cluster.put("a", server="docs", port="9000")
        eventually(lambda: running(intents) == {"docs": "http://a.prod.svc:9000/mcp"})
        cluster.put("a")
        eventually(lambda: running(intents) == {})
        cluster.put("a", server="docs")
        eventually(lambda: "docs" in running(intents))
        cluster.remove("a")
        eventually(lambda: running(intents) == {})

    assert cluster.lists == 1


def test_a_server_stays_in_the_copy_while_its_changed_object_is_read(
    cluster: ScriptedKubernetes, intents: Intents
) -> None:
    seen: list[int] = []

    def read(document: dict[str, Any], announcements: Announcements) -> Running | None:
        if cluster.watched_from:
            seen.append(len(watched.running()))
        return SERVICES.read(document, announcements)

    watched = source(cluster, replace(SERVICES, read=read))
    cluster.put("a", server="docs")
    with watching(watched, intents):
        eventually(lambda: cluster.watched_from and "docs" in running(intents))
        cluster.put("a", server="docs", port="9000")
        eventually(lambda: running(intents) == {"docs": "http://a.prod.svc:9000/mcp"})

    assert set(seen) == {1}


def test_a_change_of_a_service_without_a_server_reads_no_intents(cluster: ScriptedKubernetes, intents: Intents) -> None:
    registry = CollectorRegistry()
    metrics = SourceMetrics(registry)
    registry.register(metrics)
    with watching(source(cluster), intents, metrics=metrics):
        cluster.put("a", server="docs")
        eventually(lambda: cluster.watched_from and "docs" in running(intents))
        before = reconciled(registry)

        for number in range(20):
            sent = cluster.sent
            cluster.put("other", {"spec": {"ports": [{"port": 8000 + number}]}})
            eventually(partial(has_sent_more, cluster, sent))
        cluster.put("b", server="files")
        eventually(lambda: "files" in running(intents))

    assert reconciled(registry) <= before + 2


def test_a_burst_of_changes_causes_one_list(cluster: ScriptedKubernetes, intents: Intents) -> None:
    registry = CollectorRegistry()
    metrics = SourceMetrics(registry)
    registry.register(metrics)
    with watching(source(cluster), intents, debounce_s=1.0, metrics=metrics):
        eventually(lambda: cluster.watched_from and reconciled(registry))
        began, before = time.monotonic(), reconciled(registry)
        for number in range(50):
            sent = cluster.sent
            cluster.put(f"service-{number}", server=f"server-{number}")
            eventually(partial(has_sent_more, cluster, sent))

        eventually(lambda: len(running(intents)) == 50)
        took_s = time.monotonic() - began

    assert reconciled(registry) <= before + 2 + took_s
    assert all(generation(intents, f"server-{number}") == 1 for number in range(50))


def test_only_selected_services_are_sent_by_the_api_server(cluster: ScriptedKubernetes, intents: Intents) -> None:
    labelled = {LABEL: "true"}
    cluster.put("a", labels=labelled, server="docs")
    for number in range(10):
        cluster.put(f"other-{number}", server=f"unlabelled-{number}")
    with watching(source(cluster, selector=f"{LABEL}=true"), intents):
        eventually(lambda: cluster.watched_from and set(running(intents)) == {"docs"})
        cluster.put("other-1", server="still-unlabelled")
        assert cluster.sent == 1

        cluster.put("b", labels=labelled, server="files")
        eventually(lambda: set(running(intents)) == {"docs", "files"})
        cluster.put("b", server="files")  # without the label
        eventually(lambda: set(running(intents)) == {"docs"})
        cluster.put("b", labels=labelled, server="files")
        eventually(lambda: set(running(intents)) == {"docs", "files"})
        cluster.remove("a")
        eventually(lambda: set(running(intents)) == {"files"})

    assert cluster.sent == 5


def test_a_version_that_expired_makes_it_list_again(cluster: ScriptedKubernetes, intents: Intents) -> None:
    cluster.put("a", server="gone")
    cluster.put("b", server="kept")
    with watching(source(cluster), intents):
        eventually(lambda: cluster.watched_from and len(running(intents)) == 2)

        del cluster.objects["a"]  # its event will never come
        cluster.expire()
        cluster.bookmark()

        eventually(lambda: set(running(intents)) == {"kept"})
        assert generation(intents, "kept") == 1


def test_what_is_missed_while_the_connection_is_cut_is_listed_again(
    cluster: ScriptedKubernetes, intents: Intents
) -> None:
    cluster.put("a", server="gone")
    with watching(source(cluster), intents):
        eventually(lambda: cluster.watched_from and "gone" in running(intents))

        cluster.is_down = True
        cluster.end_watches(cut=True)
        del cluster.objects["a"]
        cluster.put("b", server="new")
        assert set(running(intents)) <= {"gone", "new"}
        cluster.is_down = False

        eventually(lambda: set(running(intents)) == {"new"})


def test_a_watch_that_ends_in_due_time_goes_on_from_the_last_bookmark_without_listing(
    cluster: ScriptedKubernetes, intents: Intents
) -> None:
    with watching(source(cluster, least_watch_s=0.0), intents):
        eventually(lambda: cluster.watched_from)
        cluster.put("a", server="docs")
        cluster.bookmark()
        version = cluster.version
        eventually(lambda: "docs" in running(intents))

        cluster.end_watches()
        eventually(lambda: version in cluster.watched_from)
        cluster.put("b", server="later")

        eventually(lambda: "later" in running(intents))
        assert cluster.lists == 1


def test_a_cluster_that_is_away_takes_nothing_down(cluster: ScriptedKubernetes, intents: Intents) -> None:
    cluster.put("a", server="docs")
    with watching(source(cluster), intents, relist_s=0.05):
        eventually(lambda: cluster.watched_from and "docs" in running(intents))

        cluster.is_down = True
        cluster.end_watches(cut=True)
        lists = cluster.lists
        cluster.put("b", server="later")
        cluster.is_down = False

        eventually(lambda: set(running(intents)) == {"docs", "later"})
        assert cluster.lists > lists
        assert generation(intents, "docs") == 1


def test_a_watcher_that_starts_while_the_cluster_is_away_takes_nothing_down(
    cluster: ScriptedKubernetes, intents: Intents
) -> None:
    cluster.put("a", server="docs")
    with watching(source(cluster), intents):
        eventually(lambda: "docs" in running(intents))
    cluster.is_down = True
    failed = cluster.refused

    with watching(source(cluster), intents):
        eventually(lambda: cluster.refused > failed)
        cluster.is_down = False
        eventually(lambda: generation(intents, "docs") > 1 and "docs" in running(intents))

    assert generation(intents, "docs") == 2  # announced twice, never taken down


def test_a_toolhive_server_is_announced_once_it_runs(intents: Intents) -> None:
    with scripted_kubernetes(MCP_SERVERS.path) as cluster:
        cluster.put("fetch", {"status": {"phase": "Pending", "url": ""}})
        with watching(source(cluster, MCP_SERVERS), intents):
            eventually(lambda: cluster.watched_from)
            assert running(intents) == {}

            cluster.put("fetch", {"status": {"phase": "Running", "url": "http://mcp-fetch.prod.svc:8080/sse#fetch"}})
            eventually(lambda: running(intents) == {"prod/fetch": "http://mcp-fetch.prod.svc:8080/sse"})
            intent = intents.intent("prod/fetch")
            assert intent is not None
            assert (intent.source, intent.announcement.transport) == ("toolscale/toolhive", "sse")

            cluster.put("fetch", {"status": {"phase": "Failed", "url": "http://mcp-fetch.prod.svc:8080/sse"}})
            eventually(lambda: running(intents) == {})


def test_a_cluster_without_toolhive_has_no_servers_of_it(cluster: ScriptedKubernetes, intents: Intents) -> None:
    with scripted_kubernetes(MCP_SERVERS.path) as before:
        before.put("fetch", {"status": {"phase": "Running", "url": "http://mcp-fetch.prod.svc:8080/mcp"}})
        with watching(source(before, MCP_SERVERS), intents):
            eventually(lambda: "prod/fetch" in running(intents))

    with watching(source(cluster, MCP_SERVERS), intents):
        eventually(lambda: running(intents) == {})


def test_an_annotation_that_cannot_be_used_does_not_cost_the_others(
    cluster: ScriptedKubernetes, intents: Intents
) -> None:
    cluster.put("a", server="no way")
    cluster.put("b", server="nowhere", port="no-such-port")
    cluster.put("c", {"spec": {"ports": "broken"}}, server="broken")
    cluster.put("d", server="good")

    with watching(source(cluster), intents):
        eventually(lambda: set(running(intents)) == {"good"})


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
        composition.run("watch", "-m", "toolscale", "watch", "kubernetes", "--selector", LABEL) as watcher,
        closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as intents,
    ):
        eventually(lambda: set(running(intents)) == {"docs"}, what=watcher.output())
        page = f"http://127.0.0.1:{port}/metrics"
        shown = [f'toolscale_source_connected{{source="{kind.source}"}}' for kind in RESOURCE_KINDS]
        eventually(lambda: all(name in scraped(page) for name in shown), what=watcher.output())
        assert scraped(page)['toolscale_events_total{outcome="recorded",type="up"}'] == 1
        watcher.process.terminate()

        assert watcher.process.wait(60) == 130
