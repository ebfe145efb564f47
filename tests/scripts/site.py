"""A service whose scripts call real servers, which record what they receive."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from mcp import Client
from mcp.types import CallToolResult, TextContent

from query.answers.budget import ResponsePolicy
from query.caller import Caller
from query.calling.limits import CallLimits
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue
from query.mcp import service_of
from query.policy import Policy
from query.records import Ledger
from shared.catalog import IndexedTool
from tests.support.calling import PATIENT, tool_of, upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.hostile.messages import result
from tests.support.hostile.scripted_http import Exchange
from tests.support.policies import RecordingServers, always, policy, recording_servers
from tests.support.replicated import put_server

GROUPS: Mapping[str, frozenset[str]] = {"files": frozenset({"dev"}), "time": frozenset({"dev", "office"})}
# `read` returns its arguments as structured content, `list` a JSON text, `say` a plain text, and `fail` an error.
TOOLS: Mapping[str, tuple[IndexedTool, ...]] = {
    server: (
        tool_of("", "read", hint="readOnlyHint", path={"type": "string"}),
        tool_of("", "list"),
        tool_of("", "say"),
        tool_of("", "fail"),
    )
    for server in GROUPS
}
SECRET = "a-secret-of-the-host"


def respond(exchange: Exchange) -> None:
    """Answer a call by the name of its tool."""
    request = exchange.request_json
    name: str = request["params"]["name"]
    arguments: dict[str, Any] = request["params"].get("arguments") or {}
    text = {"list": json.dumps([arguments, 1]), "say": f"said {arguments}", "fail": "it failed"}.get(name, "")
    content: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": name == "fail"}
    if name == "read":
        content = {"content": [], "structuredContent": {"read": arguments}}
    exchange.send_json(result(request, content))


@dataclass
class Site:
    """A service with a caller and rules that tests change, and its servers."""

    servers: RecordingServers
    upstreams: Upstreams
    max_tokens: int = 25_000
    rules: Policy = field(default_factory=lambda: policy(""))
    caller: Caller = field(default_factory=lambda: Caller("ann"))

    def __post_init__(self) -> None:
        """Fill the catalogue."""
        index = FakeIndex()
        for server, tools in TOOLS.items():
            put_server(index, server, tools, declared_name=server, groups=GROUPS[server], protocol_version="2025-11-25")
        self.catalogue = Catalogue(
            index,
            FakeEmbedder(),
            Ledger(index),
            response_policy=ResponsePolicy(max_tokens=self.max_tokens),
            read_policy=lambda: self.rules,
        )

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncGenerator[Client]:
        """Yield a client of the caller."""
        async with Client(service_of(self.catalogue, self.upstreams, always(self.caller)), **options) as client:
            yield client

    async def run(self, source: str, **options: Any) -> CallToolResult:
        """Return the answer to a script of the caller."""
        async with self.client(**options) as client:
            return await client.call_tool("run_script", {"source": source})


@contextmanager
def running_site(limits: CallLimits = PATIENT, **options: Any) -> Generator[Site]:
    """Yield a service with its servers."""
    with recording_servers(TOOLS) as servers:
        servers.on_call = dict.fromkeys(TOOLS, respond)
        yield Site(servers, upstreams_to(servers.targets, limits), **options)


def sandboxes(service: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the processes of scripts that this service has, by default the tests' own, with their interpreters."""
    return [each for each in (service or psutil.Process()).children(recursive=True) if _is_sandbox(each)]


def _is_sandbox(process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return any(Path(part).name in ("sandbox.py", "monty") for part in command)


def texts(answer: CallToolResult) -> list[str]:
    """Return the texts of an answer."""
    return [block.text for block in answer.content if isinstance(block, TextContent)]


def facts(answer: CallToolResult) -> dict[str, Any]:
    """Return what is stated of a script: its calls, and in a text of their own its error and its log."""
    stated = texts(answer) if answer.is_error else texts(answer)[:-1]
    return {key: value for text in stated for key, value in json.loads(text).items()}


def value(answer: CallToolResult) -> Any:
    """Return the result of a script that ended well, all of it on the first page."""
    assert not answer.is_error, texts(answer)
    return json.loads(texts(answer)[-1])


def outcomes(answer: CallToolResult) -> list[tuple[str, int]]:
    """Return the outcome of each kind of call, as `server:tool outcome`, and how often it was."""
    return [(f"{c['server']}:{c['tool']} {c['outcome']}", c.get("count", 1)) for c in facts(answer)["calls"]]


def in_turn(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Return a script that makes these calls one after the other, and returns what each of them returned."""
    lines = ["results = []"]
    for tool, arguments in calls:
        lines += [
            "try:",
            f"    results.append(await call({tool!r}, {dict(arguments)!r}))",
            "except ToolError as error:",
            "    results.append('error: ' + str(error))",
        ]
    return "\n".join([*lines, "results"])
