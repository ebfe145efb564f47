"""A request names a server by all words of its id or of its declared name, and finds its tools first."""

from __future__ import annotations

import pytest

from query.named import ServerNames, is_named, terms_of
from shared.catalog import Endpoint, ServerRecord, point_id, server_half
from tests.search.test_find import find
from tests.support.fakes import make_tool
from tests.support.filled import index_of


def record(server_id: str, declared_name: str = "") -> ServerRecord:
    return ServerRecord(
        server_id=server_id, endpoint=Endpoint(url="http://127.0.0.1:9/mcp"), declared_name=declared_name
    )


def half(server_id: str) -> str:
    return server_half(point_id(server_id, "any"))


@pytest.mark.parametrize(
    ("server", "request_"),
    [
        (record("github"), "open an issue on GitHub"),
        (record("google-maps"), "the way to work, by google maps"),
        (record("s1", "LinearTickets"), "close my linear tickets"),
        (record("weather_service"), "ask the weather services"),
        (record("s2", "GitHub"), "my github notifications"),
    ],
)
def test_all_words_of_a_name_in_any_spelling_name_the_server(server: ServerRecord, request_: str) -> None:
    assert is_named(server, terms_of(request_))


@pytest.mark.parametrize(
    ("server", "request_"),
    [
        (record("google-maps"), "search google"),
        (record("github", "GitHub MCP Server"), "git hub"),
        (record("the", "I want"), "the thing that I want"),
    ],
)
def test_a_part_of_a_name_and_stop_words_name_no_server(server: ServerRecord, request_: str) -> None:
    assert not is_named(server, terms_of(request_))


def test_a_stranger_is_not_named_and_a_server_that_is_gone_is_none() -> None:
    servers = ServerNames([record("github"), record("mail", "Github")])
    halves = {half("github"), half("mail"), half("gone")}

    assert servers.named(halves, terms_of("github"), ()) == {half("github"), half("mail")}
    assert servers.named(halves, terms_of("github"), {"mail"}) == {half("github")}
    assert ServerNames([record("s", "LinearTickets")]).named({half("s")}, terms_of("lineartickets"), ()) == set()


def test_a_named_server_raises_its_tools_above_those_that_fit_a_little_better() -> None:
    walls = [make_tool("zeta", f"paint_{number}", f"paint wall {number}") for number in range(10)]
    fits = make_tool("alpha", "create_issue", "create an issue in linear")

    (first, second) = find(
        index_of(fits, make_tool("linear", "create", "create issue"), *walls), fits.definition.description
    ).tools

    assert (first.name, second.name) == ("linear:create", "alpha:create_issue")
