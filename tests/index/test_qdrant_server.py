"""A scripted Qdrant server: its errors, several addresses, connections, and how collections are created."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from email.message import Message
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from urllib3 import ProxyManager
from urllib3.connection import HTTPConnection

from shared.catalog import SparseVector
from shared.errors import ConfigInvalid, IndexLost, IndexUnavailable
from shared.index import addresses, open_store, unreachable_reason
from shared.index.client import ServerClient, connections
from shared.index.points import NamedVector, Point, PointCollection, Vector, any_of, equal_to, must
from shared.index.records import SERVERS_SPEC
from shared.index.server import BATCH_CHARACTERS, BATCH_POINTS, ServerEngine, batches
from shared.index.tools import TOOL_INDEXES
from shared.index.versions import IndexVersion
from shared.settings import load_settings
from tests.support.http_thread import SilentHandler, served
from tests.support.indexes import open_server
from tests.support.ports import free_port
from tests.support.scripted_qdrant import COLLECTION, POINTS, creating, scripted_qdrant
from toolscale.doctor.stores import check_index


def servers_at(url: str) -> PointCollection:
    """Return the collection of servers at these addresses."""
    return ServerEngine(ServerClient(url, None)).collection(SERVERS_SPEC)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(IndexUnavailable, match="QDRANT_URL"):
        open_server("http://127.0.0.1:1", "tools", 4)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_unavailable(status: int) -> None:
    with scripted_qdrant(lambda _method, _path: (status, None)) as url, pytest.raises(IndexUnavailable):
        open_server(url, "tools", 4)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_needs_the_operator(status: int) -> None:
    with scripted_qdrant(lambda _method, _path: (status, None)) as url, pytest.raises(ConfigInvalid, match="API_KEY"):
        open_server(url, "tools", 4)


def test_a_collection_that_is_gone_is_lost_and_not_merely_unavailable() -> None:
    with scripted_qdrant(lambda method, _path: (404, None) if method == "POST" else (200, COLLECTION)) as url:
        engine = ServerEngine(ServerClient(url, None))

        with pytest.raises(IndexLost, match="no collection servers"):
            engine.collection(SERVERS_SPEC).retrieve(["5f0a2b1e-7d0c-5f6e-9a53-0c1f6f2f7a11"])


def test_a_collection_that_another_worker_made_in_the_same_moment_is_used() -> None:
    refused: set[str] = set()
    indexed: list[str] = []

    def answer(method: str, path: str) -> tuple[int, object]:
        if path.endswith("/exists"):
            return 200, {"exists": path.removesuffix("/exists") in refused}
        if path.endswith("/index"):
            indexed.append(path)
            return 200, {"operation_id": 1, "status": "completed"}
        if method == "PUT":
            refused.add(path)
            return 409, None
        return 200, POINTS if path.endswith("/scroll") else COLLECTION

    with scripted_qdrant(answer) as url:
        open_server(url, "tools", 4).close()

    assert refused == {"/collections/tools", "/collections/servers", "/collections/toolsets"}
    assert indexed.count("/collections/tools/index") == len(TOOL_INDEXES)
    assert indexed.count("/collections/servers/index") == len(SERVERS_SPEC.indexes)


@pytest.mark.parametrize("status", ["acknowledged", "wait_timeout"])
def test_a_write_that_was_only_noted_is_none_since_what_is_read_next_would_lack_it(status: str) -> None:
    noted = {"operation_id": 1, "status": status}
    with scripted_qdrant(lambda _method, _path: (200, noted)) as url:
        servers = servers_at(url)
        writes: list[Callable[[], None]] = [
            lambda: servers.upsert([Point("00000000-0000-0000-0000-000000000001", {})]),
            lambda: servers.delete(["00000000-0000-0000-0000-000000000001"]),
            lambda: servers.set_payload({"status": "stopped"}, {}),
        ]
        for write in writes:
            with pytest.raises(IndexUnavailable, match=status):
                write()


def test_a_collection_that_cannot_be_made_is_an_error() -> None:
    def answer(method: str, path: str) -> tuple[int, object]:
        return (400, None) if method == "PUT" else (200, {"exists": False})

    with scripted_qdrant(answer) as url, pytest.raises(IndexUnavailable, match="400"):
        open_server(url, "tools", 4)


def test_a_request_is_bounded_in_points_and_in_characters() -> None:
    small = [Point(f"small-{i}", {"definition": "x"}) for i in range(2 * BATCH_POINTS + 1)]
    large = [Point(f"large-{i}", {"definition": "x" * (BATCH_CHARACTERS // 2)}) for i in range(3)]
    giant = [Point("giant", {"definition": "x" * (2 * BATCH_CHARACTERS)})]

    assert [len(batch) for batch in batches(small)] == [BATCH_POINTS, BATCH_POINTS, 1]
    assert [len(batch) for batch in batches(large)] == [2, 1]
    assert [[point.id for point in batch] for batch in batches(giant + small[:2])] == [
        ["giant"],
        ["small-0", "small-1"],
    ]
    assert list(batches([])) == []


def test_writes_go_through_the_leader_of_a_shard_so_that_replicas_do_not_come_to_differ() -> None:
    asked: list[str] = []
    done = {"operation_id": 1, "status": "completed"}
    with scripted_qdrant(lambda _method, _path: (200, done), asked) as url:
        servers = servers_at(url)

        servers.upsert([Point("00000000-0000-0000-0000-000000000001", {})])
        servers.delete(["00000000-0000-0000-0000-000000000001"])
        servers.set_payload({"status": "stopped"}, {})

    assert [dict(parse_qsl(path.partition("?")[2])) for path in asked] == [{"wait": "true", "ordering": "medium"}] * 3


def test_points_are_written_in_one_request_with_their_vectors() -> None:
    asked, bodies = list[str](), dict[str, Any]()
    done = {"operation_id": 1, "status": "completed"}
    vectors: dict[str, Vector] = {
        "dense": np.array([0.5, 0.25], np.float32),
        "bm25": SparseVector((3,), (1.0,)),
    }
    with scripted_qdrant(lambda _method, _path: (200, done), asked, bodies) as url:
        servers = servers_at(url)

        servers.upsert([Point(HIT, {"server_id": "files", "source": None}, vectors)])

    assert asked == ["/collections/servers/points?wait=true&ordering=medium"]
    sent_vectors = {"dense": [0.5, 0.25], "bm25": {"indices": [3], "values": [1.0]}}
    point = {"id": HIT, "vector": sent_vectors, "payload": {"server_id": "files", "source": None}}
    assert bodies == {"/collections/servers/points": {"points": [point]}}


HIT = "00000000-0000-0000-0000-000000000001"
BY_MEANING = NamedVector("dense", np.array([0.5, 0.5], np.float32))
BY_WORDS = NamedVector("bm25", SparseVector((3,), (1.0,)))


def test_a_search_of_several_lists_is_one_request_for_ids_and_scores() -> None:
    asked, bodies = list[str](), dict[str, Any]()
    lists = [{"points": [{"id": HIT, "version": 7, "score": score}]} for score in (0.9, 3.5)]
    with scripted_qdrant(lambda _method, _path: (200, lists), asked, bodies) as url:
        servers = servers_at(url)

        found = servers.query(
            [BY_MEANING, BY_WORDS], must(equal_to("status", "running")), 5, must(any_of("groups", ("dev",)))
        )

    assert found == [{HIT: 0.9}, {HIT: 3.5}]
    assert len(asked) == 1
    by_meaning, by_words = bodies["/collections/servers/points/query/batch"]["searches"]
    running = {"must": [{"key": "status", "match": {"value": "running"}}]}
    assert by_meaning["filter"] == by_words["filter"] == running
    assert (by_meaning["query"], by_meaning["limit"], "idf" in by_meaning["params"]) == ([0.5, 0.5], 5, False)
    assert by_words["query"] == {"indices": [3], "values": [1.0]}
    assert by_words["params"]["idf"]["corpus"]["must"] == [{"key": "groups", "match": {"any": ["dev"]}}]


def test_facets_and_counts_are_exact_and_of_the_matching_points() -> None:
    asked, bodies = list[str](), dict[str, Any]()
    answer = {"hits": [{"value": 3, "count": 2}], "count": 5}
    with scripted_qdrant(lambda _method, _path: (200, answer), asked, bodies) as url:
        servers = servers_at(url)
        where = must(equal_to("status", "running"))

        assert (servers.facet("revision", where, 9), servers.count(where)) == ({3: 2}, 5)

    assert asked == ["/collections/servers/facet", "/collections/servers/points/count"]
    of_facet, of_count = bodies.values()
    assert of_count == {"filter": {"must": [{"key": "status", "match": {"value": "running"}}]}, "exact": True}
    assert of_facet == of_count | {"key": "revision", "limit": 9}


@pytest.mark.parametrize(("status", "lists"), [(200, [{"points": [{"id": HIT}]}]), (200, None), (503, None)])
def test_a_search_without_readable_scores_is_unavailable(status: int, lists: object) -> None:
    with scripted_qdrant(lambda _method, _path: (status, lists)) as url, pytest.raises(IndexUnavailable):
        servers_at(url).query([BY_MEANING], {}, 5)


@pytest.mark.parametrize(("nodes", "requests"), [(1, 1), (2, 2)])
def test_a_read_goes_to_another_node_while_the_first_one_loads_its_shards(nodes: int, requests: int) -> None:
    asked: list[str] = []
    with (
        scripted_qdrant(lambda _method, _path: (500, None), asked) as starting,
        scripted_qdrant(lambda _method, _path: (200, POINTS), asked) as ready,
    ):
        servers = servers_at(",".join((starting, ready)[:nodes]))
        with nullcontext() if nodes > 1 else pytest.raises(IndexUnavailable, match="500"):
            assert servers.scroll({}, 5) == ([], None)

    assert len(asked) == requests


def test_reads_send_the_key() -> None:
    with recorded(b'{"result": []}') as requests, closing(ServerClient(requests.url, "a-key")) as client:
        ServerEngine(client).collection(SERVERS_SPEC).retrieve([HIT])

    assert [headers["api-key"] for headers in requests.headers] == ["a-key"]


def test_reads_share_a_connection_until_the_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.index.client.IDLE_S", 60.0)
    with recorded(b'{"result": {"points": []}}') as requests:
        client = ServerClient(requests.url, None)
        servers = ServerEngine(client).collection(SERVERS_SPEC)
        for _ in range(3):
            servers.scroll({}, 5)

        assert len(set(requests.clients)) == 1
        assert {headers["Accept-Encoding"] for headers in requests.headers} == {"identity"}
        assert not requests.ended.is_set()
        client.close()
        assert requests.ended.wait(30)


@dataclass
class Recorded:
    """The requests of a server: address and headers of each; `ended` is set when a connection ends."""

    url: str = ""
    clients: list[object] = field(default_factory=list[object])
    headers: list[Message] = field(default_factory=list[Message])
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def recorded(body: bytes) -> Generator[Recorded]:
    """Yield the requests of a server that sends this body."""
    requests = Recorded()

    class Handler(SilentHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests.clients.append(self.client_address)
            requests.headers.append(self.headers)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def finish(self) -> None:
            super().finish()
            requests.ended.set()

        do_POST = do_GET  # the name http.server looks for

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        requests.url = f"http://127.0.0.1:{server.server_port}"
        yield requests


@pytest.mark.process
def test_a_process_that_embeds_nothing_opens_a_server_without_loading_what_embeds() -> None:
    program = (
        "import sys; from shared.index import open_engine; from shared.settings import load_settings\n"
        "open_engine(load_settings(qdrant_url='http://127.0.0.1:1'))\n"
        "print({'fastembed', 'onnxruntime'} & sys.modules.keys())\n"
        "import fastembed"
    )

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert loaded.stdout.strip() == "set()"


# --- several addresses in QDRANT_URL ---


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


def test_requests_go_to_the_next_address_while_the_first_one_does_not_answer() -> None:
    asked: list[str] = []
    with scripted_qdrant(creating(set()), asked) as url:
        engine = ServerEngine(ServerClient(f"{nowhere()},{nowhere()},{url}", None))

        assert [engine.exists("servers"), engine.exists("servers")] == [False, False]

    assert asked == ["/collections/servers/exists"] * 2


def test_no_address_that_answers_is_unavailable() -> None:
    with pytest.raises(IndexUnavailable, match="refused"):
        ServerEngine(ServerClient(f"{nowhere()},{nowhere()}", None)).names()


def test_a_node_that_comes_back_is_used_when_the_other_one_dies() -> None:
    first = free_port()
    with scripted_qdrant(creating(set())) as second:
        engine = ServerEngine(ServerClient(f"http://127.0.0.1:{first},{second}", None))
        assert not engine.exists("servers")
    with scripted_qdrant(creating({"/collections/servers"}), port=first):
        assert engine.exists("servers")


def exists(engine: ServerEngine) -> object:
    return engine.exists("servers")


def scroll(engine: ServerEngine) -> object:
    return engine.collection(SERVERS_SPEC).scroll({}, 5)


@pytest.mark.parametrize("ask", [exists, scroll])
def test_a_request_is_repeated_once_when_a_server_closes_its_connection(ask: Callable[[ServerEngine], object]) -> None:
    closed = itertools.count()

    def answer(method: str, path: str) -> tuple[int, object]:
        if next(closed) == 0:
            raise ConnectionAbortedError
        return 200, {"exists": True, "points": []}

    with scripted_qdrant(answer) as url, closing(ServerEngine(ServerClient(url, None))) as engine:
        assert ask(engine)

    assert next(closed) == 2


@pytest.mark.parametrize("idle_s", [0.0, 60.0])
def test_a_connection_that_was_idle_is_opened_again(idle_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.index.client.IDLE_S", idle_s)
    monkeypatch.setattr(SilentHandler, "protocol_version", "HTTP/1.1")  # which keeps connections
    connected = itertools.count()
    connect = HTTPConnection.connect

    def counted(connection: HTTPConnection) -> None:
        next(connected)
        connect(connection)

    monkeypatch.setattr(HTTPConnection, "connect", counted)
    with (
        scripted_qdrant(lambda _method, _path: (200, {"points": []})) as url,
        closing(ServerEngine(ServerClient(url, None))) as engine,
    ):
        for _ in range(3):
            assert engine.collection(SERVERS_SPEC).scroll({}, 5) == ([], None)

    assert next(connected) == (1 if idle_s else 3)


def test_a_read_goes_to_the_next_address_where_the_handshake_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.index.client.CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, scripted_qdrant(creating(set())) as url:
        client = ServerClient(f"https://127.0.0.1:{silent.getsockname()[1]},{url}", None)
        with closing(ServerEngine(client)) as engine:
            assert engine.collection(SERVERS_SPEC).scroll({}, 5) == ([], None)


def test_a_read_after_the_end_of_its_client_is_unavailable() -> None:
    with scripted_qdrant(creating(set())) as url:
        engine = ServerEngine(ServerClient(url, None))
        collection = engine.collection(SERVERS_SPEC)
        engine.close()

        with pytest.raises(IndexUnavailable, match="closed"):
            collection.scroll({}, 5)


def test_a_password_of_a_proxy_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:p%40ss@proxy.lan:3128")

    manager = connections("http://node:6333")

    assert isinstance(manager, ProxyManager)
    assert manager.proxy_headers["proxy-authorization"] == f"Basic {b64encode(b'user:p@ss').decode()}"


@pytest.mark.parametrize("address", ["http://node", "http://node:6333", "http://node:6333/", " http://node "])
def test_an_address_has_the_port_of_qdrant(address: str) -> None:
    assert addresses(f"{address},https://other:443/path") == ("http://node:6333", "https://other:443/path")


def test_any_node_that_answers_is_reachable() -> None:
    with scripted_qdrant(lambda _method, _path: (200, None)) as url:
        assert unreachable_reason(f"{nowhere()},{url}") is None
    reason = unreachable_reason(f"{nowhere()},{nowhere()}")
    assert reason
    assert reason.startswith("ConnectError")


@pytest.mark.parametrize("url", ["node:6333", "http://node, http://other", "http://node,other", "http://node,"])
def test_an_address_without_a_scheme_ends_the_start(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="QDRANT_URL"):
        load_settings(qdrant_url=url)


def test_line_ends_around_the_key_are_ignored() -> None:
    assert load_settings(qdrant_api_key="a-key\n").qdrant_api_key == "a-key"


# --- options of collections, and collections that another process is creating ---


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
        ("shards=2", "qdrant_collection .* shard_number"),
        ("replication_factor=0", "qdrant_collection.replication_factor .* 1 or more"),
        ("on_disk", "qdrant_collection.on_disk .* true or false"),
        ("quantization=binary", "qdrant_collection.quantization .* 'int8'"),
        ("on_disk=true on_disk=false", "qdrant_collection .* twice"),
    ],
)
def test_an_option_that_qdrant_does_not_have_ends_the_start(options: str, message: str) -> None:
    with pytest.raises(ConfigInvalid, match=message):
        load_settings(qdrant_collection=options)
