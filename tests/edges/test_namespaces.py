"""In Kubernetes, a server's id is of the namespace that announced it first; another one's is an error that both see."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import structlog

from query.caller import ANYONE
from query.catalogue import Catalogue
from query.records import Ledger
from query.servers import servers
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.sources.test_kubernetes_watcher import source
from tests.support.builders import down
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.kubernetes_api import ScriptedKubernetes, scripted_kubernetes
from tests.support.present import present
from workers.emit import Emitter
from workers.sources.announcer import SourceAnnouncer, Watcher

pytestmark = pytest.mark.process


@pytest.fixture
def intents(tmp_path: Path) -> Generator[Intents]:
    with closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as store:
        store.mark_complete()
        yield store


@pytest.fixture
def cluster() -> Generator[ScriptedKubernetes]:
    with scripted_kubernetes() as scripted:
        yield scripted


def watcher(cluster: ScriptedKubernetes, intents: Intents) -> Watcher:
    """Return a watcher as a new process has it."""
    found = source(cluster)
    return Watcher(found, SourceAnnouncer(found.name, intents, Emitter(intents, lambda _: None, 0.0).emit))


def put(cluster: ScriptedKubernetes, namespace: str, created: str, server: str = "docs", **more: str) -> None:
    """Create a Service; `created` is the day of its creation, which the API server writes."""
    annotations = {
        f"toolscale.dev/{key.replace('_', '-')}": value for key, value in (more | {"server": server}).items()
    }
    metadata: dict[str, Any] = {
        "name": "mcp",
        "namespace": namespace,
        "uid": f"{namespace}-{created}",
        "annotations": annotations,
        "generation": 1,
        "labels": {},
        "creationTimestamp": f"2026-{created}T00:00:00Z",
    }
    cluster.objects[f"{namespace}/{server}"] = {"metadata": metadata, "spec": {"ports": [{"port": 80}]}}


def url(intents: Intents, server: str = "docs") -> str | None:
    intent = present(intents.intent(server))
    return intent.announcement.url if intent.status == "running" else None


TOOLS, AAA, ZZZ = ("http://mcp.{}.svc:80/mcp".format(each) for each in ("tools", "aaa", "zzz"))  # noqa: UP032


@pytest.mark.parametrize("order", list(permutations(["aaa", "tools", "zzz"])))
def test_the_first_namespace_has_the_id_whatever_its_name(
    order: tuple[str, ...], cluster: ScriptedKubernetes, intents: Intents
) -> None:
    for namespace in order:
        put(cluster, namespace, {"tools": "01-01", "aaa": "02-01", "zzz": "03-01"}[namespace], groups=namespace)

    watcher(cluster, intents).announce()

    assert url(intents) == TOOLS
    assert present(intents.intent("docs")).announcement.groups == {"tools"}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_later_namespace_takes_nothing_and_both_see_it(
    restarts: bool, cluster: ScriptedKubernetes, intents: Intents
) -> None:
    put(cluster, "tools", "01-01", groups="ops", credential_ref="key")
    watched = watcher(cluster, intents)
    watched.announce()
    put(cluster, "aaa", "02-01", url="https://evil.example/mcp", groups="everyone", credential_ref="key")

    watched = watcher(cluster, intents) if restarts else watched
    with structlog.testing.capture_logs() as lines:
        watched.announce()
        watched.announce()

    intent = present(intents.intent("docs"))
    assert (intent.announcement.url, intent.announcement.groups) == (TOOLS, frozenset({"ops"}))
    catalogue = Catalogue(index := FakeIndex(), FakeEmbedder(), Ledger(index), intents=intents)
    (row,) = servers(ANYONE, ANYONE.scope, catalogue)["servers"]
    assert "aaa" in row["conflict"]
    (letter,) = intents.dead_letters(10)
    assert {"aaa", "tools", "docs"} <= set(letter.reason.replace("'", " ").replace(",", " ").split())
    assert len([line for line in lines if line["event"] == "server_not_announced"]) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_the_owner_keeps_the_id_when_its_service_is_made_again(
    restarts: bool, cluster: ScriptedKubernetes, intents: Intents
) -> None:
    put(cluster, "tools", "01-01")
    put(cluster, "aaa", "02-01")
    watched = watcher(cluster, intents)
    watched.announce()

    put(cluster, "tools", "05-01")  # deleted and created between two lists
    (watcher(cluster, intents) if restarts else watched).announce()

    assert url(intents) == TOOLS


def test_the_next_namespace_has_the_id_when_the_first_gives_it_up(
    cluster: ScriptedKubernetes, intents: Intents
) -> None:
    for namespace, created in (("tools", "01-01"), ("zzz", "02-01"), ("aaa", "03-01")):
        put(cluster, namespace, created)
    watched = watcher(cluster, intents)
    watched.announce()

    del cluster.objects["tools/docs"]
    watched.announce()

    assert url(intents) == ZZZ


def test_a_stop_by_an_operator_gives_the_id_to_nobody_else(cluster: ScriptedKubernetes, intents: Intents) -> None:
    put(cluster, "tools", "01-01")
    put(cluster, "aaa", "02-01")
    watched = watcher(cluster, intents)
    watched.announce()
    intents.record(down("docs"), due_in_s=0)

    watched.announce()

    assert url(intents) in (TOOLS, None)


def test_services_of_one_namespace_are_replicas_and_other_ids_are_untouched(
    cluster: ScriptedKubernetes, intents: Intents
) -> None:
    put(cluster, "tools", "01-01")
    cluster.objects["second"] = {**cluster.objects["tools/docs"]}
    put(cluster, "aaa", "02-01", "mail")

    watcher(cluster, intents).announce()

    assert (url(intents), url(intents, "mail")) == (TOOLS, AAA)
    assert intents.dead_letters(10) == []
