"""The options of collections on a Qdrant server, and collections that another process is creating."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import pytest

from shared.errors import ConfigInvalid, IndexUnavailable
from shared.index import open_store
from shared.index.versions import IndexVersion
from shared.settings import load_settings
from tests.support.indexes import open_server
from tests.support.scripted_qdrant import creating, scripted_qdrant
from toolscale.doctor.stores import check_index


@pytest.mark.parametrize(("nodes", "replicas"), [(1, 1), (2, 2), (5, 2)])
def test_collections_of_a_cluster_get_two_replicas_without_a_setting(nodes: int, replicas: int) -> None:
    bodies: dict[str, Any] = {}
    with scripted_qdrant(creating(set()), bodies=bodies, nodes=nodes) as url:
        open_server(url, "tools", 4).close()

    created = {path: body for path, body in bodies.items() if path.count("/") == 2}
    assert {path: body["replication_factor"] for path, body in created.items()} == dict.fromkeys(
        ("/collections/servers", "/collections/tools", "/collections/toolsets"), replicas
    )


def test_the_options_of_collections_are_passed_at_each_creation() -> None:
    bodies: dict[str, Any] = {}
    options = "shard_number=3 replication_factor=4 write_consistency_factor=2 on_disk=true on_disk_payload=false"
    settings = load_settings(qdrant_collection=f"{options} quantization=int8")
    with (
        scripted_qdrant(creating(set()), bodies=bodies, nodes=3) as url,
        closing(open_store(settings.model_copy(update={"qdrant_url": url}))) as store,
    ):
        store.ensure(IndexVersion("models/one", 4))
        store.ensure(IndexVersion("models/two", 4))

    created = {path: body for path, body in bodies.items() if path.count("/") == 2}
    assert len(created) == 4
    for path, body in created.items():
        asked = {name: value for name, value in body.items() if name.endswith(("number", "factor", "payload"))}
        assert asked == {
            "shard_number": 3,
            "replication_factor": 4,
            "write_consistency_factor": 2,
            "on_disk_payload": False,
        }
        assert body["quantization_config"]["scalar"] == {"type": "int8", "always_ram": True}
        assert all(vector["on_disk"] for vector in body["vectors"].values())
        assert all(vector["index"] == {"on_disk": True} for vector in body["sparse_vectors"].values())
        assert bool(body["vectors"]) == ("tools__" in path)


@pytest.mark.parametrize("status", [404, 500])
def test_a_collection_that_cannot_be_read_yet_is_waited_for(status: int) -> None:
    usual, refusals = creating(set()), itertools.count()

    def answer(method: str, path: str) -> tuple[int, object]:
        is_early = path.endswith("/tools/points/scroll") and next(refusals) < 3
        return (status, None) if is_early else usual(method, path)

    with scripted_qdrant(answer) as url:
        open_server(url, "tools", 4).close()

    assert next(refusals) == 4


def test_a_collection_that_stays_unreadable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.index.server.CREATION_S", 0.2)
    usual = creating(set())
    with (
        scripted_qdrant(lambda method, path: (500, None) if "scroll" in path else usual(method, path)) as url,
        pytest.raises(IndexUnavailable, match="500"),
    ):
        open_server(url, "tools", 4)


@pytest.mark.parametrize(("version", "is_old"), [("1.18.3", True), ("1.19.0", False), ("2.0.0-dev", False)])
def test_doctor_warns_of_a_server_that_weighs_words_by_the_tools_of_all(version: str, *, is_old: bool) -> None:
    usual = creating({"/collections/servers", "/collections/toolsets"})

    def answer(method: str, path: str) -> tuple[int, object]:
        return (200, []) if path == "/collections/servers/points" else usual(method, path)

    with scripted_qdrant(answer, version=version) as url:
        findings = list(check_index(load_settings(qdrant_url=url)))

    warnings = [finding.found for finding in findings if finding.level == "warning"]
    assert warnings == [f"Qdrant {version}, older than 1.19"] * is_old


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("shards=2", "qdrant_collection.shards .* unknown"),
        ("replication_factor=0", "qdrant_collection.replication_factor .* 1 or more"),
        ("on_disk", "qdrant_collection.on_disk .* true or false"),
        ("quantization=binary", "qdrant_collection.quantization .* 'int8'"),
        ("on_disk=true on_disk=false", "qdrant_collection .* twice"),
    ],
)
def test_an_option_that_qdrant_does_not_have_ends_the_start(options: str, message: str) -> None:
    with pytest.raises(ConfigInvalid, match=message):
        load_settings(qdrant_collection=options)
