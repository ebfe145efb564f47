"""Lets Toolscale be the suite's client: `python -m tests.conformance.driver URL` lists the suite's server and calls it.

The suite says in the environment which scenario it plays. The agent behind Toolscale is the SDK's client: it answers
questions with their defaults, and else with yes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult, TextContent

from tests.e2e.test_serve import serving

SERVER = "suite"
SAMPLES: dict[str, Any] = {"string": "x", "integer": 5, "number": 5, "boolean": True, "object": {}, "array": []}

Call = tuple[str, dict[str, Any]]


async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    assert isinstance(params, ElicitRequestFormParams)
    properties: dict[str, Any] = params.requested_schema["properties"]
    return ElicitResult(action="accept", content={name: of.get("default", True) for name, of in properties.items()})


async def play(url: str, scenario: str, context: dict[str, Any]) -> None:
    """List the tools of the suite's server, and make the calls of the scenario."""
    async with Client(url, elicitation_callback=answer) as client:
        listed = await client.call_tool("list_available_tools", {"servers": [SERVER], "detail": "full"})
        servers = (listed.structured_content or {})["toolsByServer"]
        schemas = {tool["name"]: tool["definition"]["inputSchema"] for of in servers for tool in of["tools"]}
        for name, arguments in calls(scenario, schemas, context):
            called = await client.call_tool("call_tool", {"tool_name": f"{SERVER}:{name}", "parameters": arguments})
            texts = [block.text for block in called.content if isinstance(block, TextContent)]
            sys.stderr.write(f"{name}: error {called.is_error}, {texts}\n")


def calls(scenario: str, schemas: dict[str, dict[str, Any]], context: dict[str, Any]) -> Iterator[Call]:
    """Return those that the suite asks for, else one of each tool, in the order of the list."""
    if scenario == "json-schema-2020-12-preservation":
        yield "json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]}
    elif "toolCalls" in context:
        yield from ((call["name"], call["arguments"]) for call in context["toolCalls"])
    else:
        for name, schema in schemas.items():
            properties = schema.get("properties", {})
            yield name, {each: SAMPLES[properties[each].get("type", "string")] for each in schema.get("required", [])}


def main(url: str) -> None:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {SERVER: {"type": "http", "url": url}}}))
        with serving(config) as (running, address):
            running.wait_for("server_indexed", within_s=20)
            anyio.run(play, address, os.environ["MCP_CONFORMANCE_SCENARIO"], context)
            sys.stderr.write(running.output())


if __name__ == "__main__":
    main(sys.argv[1])
