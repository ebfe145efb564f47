"""Toolscale on a Qdrant cluster of three real nodes, of the program at QDRANT_BINARY."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from qdrant_client import models  # noqa: TID251  # reads collections as the server has them
from qdrant_client.http.exceptions import ApiException  # noqa: TID251  # as above

from shared.catalog import EmbeddedTool, Endpoint, Scope, ServerRecord
from shared.errors import IndexUnavailable
from shared.index.client import ServerClient
from shared.index.server import ServerEngine
from shared.index.tools import ToolIndex
from shared.index.versions import IndexStore, IndexVersion
from shared.settings import CollectionOptions
from tests.support.fakes import DIMENSION, asking, embedded, make_tool
from tests.support.index_versions import running
from tests.support.qdrant_cluster import Node, qdrant_nodes
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]

OWN = IndexVersion("models/own", DIMENSION)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[Node]]:
    with qdrant_nodes(tmp_path_factory.mktemp("cluster"), 3) as nodes:
        yield nodes


@pytest.fixture
def nodes(cluster: list[Node]) -> Generator[list[Node]]:
    """Three running nodes without collections."""
    yield cluster
    for node in cluster:
        if node.process and node.process.poll() is not None:
            node.start()
        node.wait()
    with closing(engine(cluster)) as each:
        for name in each.names():
            eventually(partial(dropped, each, name))


def dropped(engine: ServerEngine, name: str) -> bool:
    try:
        engine.drop(name)
    except IndexUnavailable:  # a node that has just started has no leader yet
        return False
    return True


def engine(nodes: list[Node], options: CollectionOptions | None = None) -> ServerEngine:
    return ServerEngine(ServerClient(",".join(node.url for node in nodes), None), options=options)


def opened(nodes: list[Node]) -> tuple[IndexStore, ToolIndex]:
    """Return the store and the index of a process that starts with these nodes."""
    store = IndexStore(engine(nodes))
    store.ensure_active_version(OWN)
    active = store.versions().active
    assert active
    return store, store.index(active)


def test_collections_of_a_cluster_have_two_replicas_also_after_a_model_change(nodes: list[Node]) -> None:
    store, _ = opened(nodes)
    store.request_version(IndexVersion("models/next", DIMENSION))

    with closing(ServerClient(nodes[0].url, None)) as client:
        names = [found.name for found in client.get_collections().collections]
        replicas = {name: client.get_collection(name).config.params.replication_factor for name in names}

    assert set(replicas.values()) == {2}
    assert len(replicas) == 4
    store.close()


def test_the_options_are_those_of_the_settings(nodes: list[Node]) -> None:
    options = CollectionOptions(
        shard_number=2,
        replication_factor=3,
        write_consistency_factor=2,
        on_disk=True,
        on_disk_payload=False,
        quantization="int8",
    )
    with closing(IndexStore(engine(nodes, options))) as store:
        store.ensure_active_version(OWN)

    with closing(ServerClient(nodes[0].url, None)) as client:
        config = client.get_collection(OWN.name).config
    params = config.params
    assert (params.shard_number, params.replication_factor, params.write_consistency_factor) == (2, 3, 2)
    assert params.on_disk_payload is False
    assert isinstance(params.vectors, dict)
    assert all(vector.on_disk for vector in params.vectors.values())
    assert isinstance(config.quantization_config, models.ScalarQuantization)


def test_processes_that_start_together_on_an_empty_cluster_all_come_up(nodes: list[Node]) -> None:
    def start(number: int) -> IndexVersion | None:
        turned = [*nodes[number % 3 :], *nodes[: number % 3]]
        store, index = opened(turned)
        with closing(store):
            assert index.token_sum(Scope(), "cl100k_base").tools == 0
            return store.versions().active

    with ThreadPoolExecutor(12) as processes:
        started = list(processes.map(start, range(12)))

    assert started == [OWN] * 12


def test_the_death_of_the_first_node_fails_no_search_and_loses_no_tool(nodes: list[Node]) -> None:
    writer, index = opened(nodes)
    reader, searched = opened(nodes)
    written, failed, numbers = set[str](), list[str](), itertools.count()

    def write() -> None:
        server_id = f"s{next(numbers)}"
        tools = [embedded(make_tool(server_id, f"tool_{n}")) for n in range(8)]
        eventually(partial(succeeded, tools, server_id))
        written.add(server_id)

    def succeeded(tools: list[EmbeddedTool], server_id: str) -> bool:
        try:
            index.upsert(tools)
            index.put_server(ServerRecord(server_id=server_id, endpoint=Endpoint(), revision=1))
        except IndexUnavailable as error:
            failed.append(str(error))
            return False
        return True

    def search() -> None:
        (found,) = searched.search([asking()], Scope(), 5)
        assert found.name

    write()
    with running(write), running(search), running(search), running(search) as searches:
        for node in (nodes[0], nodes[1]):
            grown(written, 5)
            node.kill()
            enough = searches() + 10
            grown(written, 5)
            eventually(partial(exceeds, searches, enough))
            node.start()
            node.wait()
            eventually(partial(has_all_replicas, node))

    for node in nodes:
        store, own = opened([node])
        assert own.servers_with_tools() == written
        assert own.revisions().keys() == written
        assert own.token_sum(Scope(), "cl100k_base").tools == 8 * len(written)
        store.close()
    assert len(failed) < 20
    writer.close()
    reader.close()


def has_all_replicas(node: Node) -> bool:
    """Return whether all replicas of all collections are active, as this node sees them."""
    with closing(ServerClient(node.url, None)) as client:
        try:
            names = [collection.name for collection in client.get_collections().collections]
            shards = [client.collection_cluster_info(name) for name in names]
        except ApiException:  # it has just started
            return False
    states = [shard.state for found in shards for shard in found.local_shards]
    states += [shard.state for found in shards for shard in found.remote_shards]
    return all(state is models.ReplicaState.ACTIVE for state in states)


def exceeds(number: Callable[[], int], bound: int) -> bool:
    return number() > bound


def grown(written: set[str], by: int) -> None:
    target = len(written) + by
    eventually(lambda: len(written) >= target)
