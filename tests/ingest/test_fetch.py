"""Good servers, built with the SDK, over every transport and in both eras."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import psutil
import pytest

from shared.errors import ListingTooLarge
from shared.upstream.stdio import PROBE_PATIENCE_S
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.hostile.messages import MIXED_TOOLS, tool, unparsable_page
from tests.support.hostile.processes import good_http, good_stdio, scripted_stdio
from tests.support.hostile.scripted_http import Exchange, Respond, scripted_http
from tests.support.hostile.scripts import has_no_tools, on_tools_list, plays
from workers.fetch.definitions import Limits
from workers.fetch.session import connect_mode, fetch_tools_blocking

pytestmark = pytest.mark.process

PATIENT = Limits(timeout_s=30)
KINDS = {"stdio": "2026-07-28", "http": "2026-07-28", "legacy": "2025-11-25", "sse": "2025-11-25"}


@pytest.fixture(scope="module", params=list(KINDS))
def good(request: pytest.FixtureRequest) -> Iterator[tuple[str, Target]]:
    if request.param == "stdio":
        yield "stdio", good_stdio()
        return
    with good_http(request.param) as target:
        yield request.param, target


def test_a_paginated_server_is_listed_completely_and_the_same_each_time(good: tuple[str, Target]) -> None:
    kind, target = good

    first = fetch_tools_blocking("good", target, PATIENT)
    second = fetch_tools_blocking("good", target, PATIENT, mode=connect_mode(first))

    assert [definition.name for definition in first.tools] == [f"tool_{number:03}" for number in range(250)]
    assert first == second
    assert (first.declared_name, first.protocol_version, first.rejected) == ("good", KINDS[kind], ())
    assert connect_mode(first) == ("legacy" if kind in ("legacy", "sse") else KINDS[kind])


def test_the_wire_is_what_a_client_receives(good: tuple[str, Target]) -> None:
    _, target = good

    definition = fetch_tools_blocking("good", target, PATIENT).tools[7]

    assert definition.as_object() == {
        "name": "tool_007",
        "description": "Looks up record 7.",
        "inputSchema": {"type": "object", "properties": {"record_id": {"type": "string", "default": None}}},
        "annotations": {"readOnlyHint": True},
    }


@pytest.mark.parametrize("over", ["http", "stdio"])
def test_a_malformed_tool_costs_its_siblings_nothing(over: str) -> None:
    limits = Limits(timeout_s=60, max_tool_bytes=65_536)

    with scripted_http(plays(lambda _: {"tools": list(MIXED_TOOLS)})) as server:
        target = HttpTarget(server.url) if over == "http" else scripted_stdio("mixed")
        listing = fetch_tools_blocking("mixed", target, limits)

    reasons = {rejected.name: rejected.reason for rejected in listing.rejected}
    assert [definition.name for definition in listing.tools] == ["good_1", "good_2", "good_3"]
    assert len(listing.rejected) == len(MIXED_TOOLS) - 3
    assert reasons["no_schema"] == "inputSchema: missing"
    assert reasons["good_1"] == "a second tool of this name"
    assert "65536" in reasons["too_large"]
    assert all(name.isprintable() and len(name) <= 128 for name in reasons)


def as_json(exchange: Exchange) -> None:
    exchange.send(200, unparsable_page(exchange.request_json))


def as_event(exchange: Exchange) -> None:
    notification = b'data: {"jsonrpc": "2.0", "method": "notifications/progress"}\n\n'
    exchange.send(200, notification + b"data: " + unparsable_page(exchange.request_json) + b"\n\n", "text/event-stream")


@pytest.mark.parametrize("over", [as_json, as_event, "stdio"])
def test_a_tool_that_no_strict_parser_accepts_costs_its_siblings_nothing(over: Respond | str) -> None:
    if isinstance(over, str):
        listing = fetch_tools_blocking("s", scripted_stdio("unparsable"), PATIENT)
    else:
        with scripted_http(on_tools_list(over)) as server:
            listing = fetch_tools_blocking("s", HttpTarget(server.url), PATIENT)

    assert [definition.name for definition in listing.tools] == [
        "good_1",
        "surrogate",
        "digits",
        "control",
        "latin",
        "good_2",
    ]
    assert [rejected.name for rejected in listing.rejected] == ["levels", "lat\ufffdn"]
    assert listing.marked == ("control",)


def test_a_definition_nested_too_deeply_to_be_sent_on_is_left_out() -> None:
    schema: dict[str, object] = {"type": "object"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"inner": schema}}
    deep = {"name": "deep", "inputSchema": schema}

    with scripted_http(plays(lambda _: {"tools": [deep, tool("good")]})) as server:
        listing = fetch_tools_blocking("s", HttpTarget(server.url), Limits(timeout_s=60))

    assert [definition.name for definition in listing.tools] == ["good"]
    assert [rejected.name for rejected in listing.rejected] == ["deep"]


def test_a_server_without_tools_has_an_empty_list() -> None:
    with scripted_http(has_no_tools) as server:
        assert fetch_tools_blocking("resources", HttpTarget(server.url), PATIENT).tools == ()


def test_a_banner_on_stdout_is_passed_over() -> None:
    assert len(fetch_tools_blocking("banner", scripted_stdio("banner"), PATIENT).tools) == 1


def test_a_child_that_ignores_unknown_methods_is_listed_without_the_long_probe() -> None:
    listing = fetch_tools_blocking("old", scripted_stdio("silent_on_unknown"), Limits(timeout_s=8))

    assert [definition.name for definition in listing.tools] == ["one"]


def test_a_child_that_is_slow_to_start_is_still_asked_in_its_own_era() -> None:
    server = good_stdio()
    slow = StdioTarget("sh", ("-c", f'sleep {PROBE_PATIENCE_S + 0.5}; exec "$0" "$@"', server.command, *server.args))

    listing = fetch_tools_blocking("slow", slow, PATIENT)

    assert (len(listing.tools), listing.protocol_version) == (250, "2026-07-28")


def test_a_child_sees_its_own_variables_and_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_CREDENTIAL_GITHUB", "not for children")

    listing = fetch_tools_blocking("env", scripted_stdio("environment", TOKEN="theirs"), PATIENT)

    seen = json.loads(listing.tools[0].description)
    assert seen["TOKEN"] == "theirs"
    assert seen["PATH"] == os.environ["PATH"]
    assert not [name for name in seen if name.startswith("TOOLSCALE")]


def test_what_a_child_started_ends_with_it() -> None:
    listing = fetch_tools_blocking("parent", scripted_stdio("has_child"), PATIENT)

    grandchild = int(listing.tools[0].name.removeprefix("child_"))
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_as_many_tools_as_allowed_are_listed_and_one_more_is_not() -> None:
    three = plays(lambda _: {"tools": [tool("a"), tool("b"), tool("c")]})

    with scripted_http(three) as server:
        assert len(fetch_tools_blocking("s", HttpTarget(server.url), Limits(max_tools=3)).tools) == 3
        with pytest.raises(ListingTooLarge, match="more than 2 tools"):
            fetch_tools_blocking("s", HttpTarget(server.url), Limits(max_tools=2))
        with pytest.raises(ListingTooLarge, match="more than 200 bytes"):
            fetch_tools_blocking("s", HttpTarget(server.url), Limits(max_total_bytes=200))
