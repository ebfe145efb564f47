"""Several addresses in QDRANT_URL."""

from __future__ import annotations

import itertools
import socket
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing

import pytest
from urllib3 import ProxyManager
from urllib3.connection import HTTPConnection

from shared.errors import ConfigInvalid, IndexUnavailable
from shared.index import addresses, unreachable_reason
from shared.index.client import ServerClient, connections
from shared.index.records import SERVERS_SPEC
from shared.index.server import ServerEngine
from shared.settings import load_settings
from tests.support.http_thread import SilentHandler
from tests.support.ports import free_port
from tests.support.scripted_qdrant import creating, scripted_qdrant


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
