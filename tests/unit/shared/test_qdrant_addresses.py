"""Several addresses in QDRANT_URL."""

from __future__ import annotations

import itertools

import pytest

from shared.errors import ConfigInvalid, IndexUnavailable
from shared.index.server.client import ServerClient
from shared.index.server.engine import ServerEngine
from shared.index.server.probe import unreachable_reason
from shared.service.qdrant_addresses import addresses
from shared.settings import load_settings
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


def test_a_request_is_repeated_once_when_a_server_closes_its_connection() -> None:
    closed = itertools.count()

    def answer(method: str, path: str) -> tuple[int, object]:
        if next(closed) == 0:
            raise ConnectionAbortedError
        return 200, {"exists": True}

    with scripted_qdrant(answer) as url:
        assert ServerEngine(ServerClient(url, None)).exists("servers")

    assert next(closed) == 2


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
