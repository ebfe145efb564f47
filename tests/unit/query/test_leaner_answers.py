"""Shorter definitions for agents, where an operator switches them on; the index keeps the originals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client

from query.answers.budget import ResponsePolicy, response_policy
from query.caller import Caller
from query.catalogue import Catalogue
from query.server.mcp import service_of
from shared.catalog import ToolDefinition
from shared.settings import Settings
from shared.toolset import Toolset
from tests.support.calling import catalogue_of, text_of, upstreams_to
from tests.support.fakes import make_tool

pytestmark = pytest.mark.anyio

ZONE = {"type": "string", "title": "Zone", "examples": ["Asia/Tokyo"], "description": "Its IANA name"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "nowArguments",
    "properties": {"zone": ZONE},
    "required": ["zone"],
    "$defs": {"unused": {"type": "string"}},
}
SHORTER = {
    "type": "object",
    "properties": {"zone": {"type": "string", "description": "Its IANA name"}},
    "required": ["zone"],
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def catalogue(*, is_on: bool = True) -> Catalogue:
    wire = json.dumps({"name": "now", "description": "Show what time it is now", "inputSchema": SCHEMA})
    found = catalogue_of([replace(make_tool("time", "now"), definition=ToolDefinition.from_wire(wire))])
    found.index.put_toolset(Toolset(name="dev", tools=("time",)))
    return replace(found, no_match_threshold=-1, response_policy=ResponsePolicy(has_leaner_definitions=is_on))


def client_of(served: Catalogue) -> Client:
    ann = Caller("ann", toolset="dev")
    return Client(service_of(served, upstreams_to({}), lambda _: ann))


@pytest.mark.parametrize(("is_on", "expected"), [(True, SHORTER), (False, SCHEMA)])
async def test_agents_read_the_shorter_schema_in_answers_and_lists(is_on: bool, expected: dict[str, Any]) -> None:
    async with client_of(catalogue(is_on=is_on)) as client:
        found = await client.call_tool("find_tool", {"tool_description": "time now"})
        described = await client.call_tool("describe_tool", {"names": "time:now"})
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}

    assert [tool["inputSchema"] for tool in found.structured_content["tools"]] == [expected]
    assert [tool["inputSchema"] for tool in described.structured_content["tools"]] == [expected]
    assert listed["time__now"].input_schema == expected


async def test_the_detail_full_has_the_definition_of_the_server_and_the_counts_are_those_of_the_index() -> None:
    async with client_of(catalogue()) as client:
        found = await client.call_tool("find_tool", {"tool_description": "time now", "detail": "full"})
        described = await client.call_tool("describe_tool", {"names": "time:now", "detail": "full"})

    for result in (found, described):
        (tool,) = result.structured_content["tools"]
        assert tool["definition"]["inputSchema"] == SCHEMA
        assert tool["token_count"] == 10


@pytest.mark.parametrize(
    "arguments",
    [
        {"tool_description": "time now", "detail": "detailed"},
        {"tool_description": "time now", "detail": "summary"},
        {"tool_description": "time now", "detail": "full"},
    ],
    ids=str,
)
async def test_a_shorter_schema_takes_no_further_parse(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, parsed = ToolDefinition.as_object, list[str]()

    def counting(definition: ToolDefinition) -> dict[str, Any]:
        parsed.append(definition.name)
        return parse(definition)

    monkeypatch.setattr(ToolDefinition, "as_object", counting)
    numbers: list[int] = []
    for is_on in (True, False):
        async with client_of(catalogue(is_on=is_on)) as client:
            parsed.clear()
            await client.call_tool("find_tool", arguments)
            numbers.append(len(parsed))

    assert numbers[0] == numbers[1]


async def test_arguments_are_checked_against_the_schema_of_the_server() -> None:
    async with client_of(catalogue()) as client:
        wrong = await client.call_tool("call_tool", {"tool_name": "time:now", "parameters": {}})
        direct = await client.call_tool("time__now", {})

    assert "zone" in text_of(wrong)
    assert "zone" in text_of(direct)


def test_the_setting_switches_it_on() -> None:
    assert response_policy(Settings(leaner_definitions=True)).has_leaner_definitions
    assert not response_policy(Settings()).has_leaner_definitions
