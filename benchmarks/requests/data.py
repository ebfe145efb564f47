"""The requests, and the tools of the demo's servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.recount.session import demo_plan
from benchmarks.recount.upstream import raw_tools
from benchmarks.retrieval.data import PROTOCOL_VERSION, CorpusServer
from benchmarks.throughput.results import Frozen
from shared.catalog import Listing, ToolDefinition

FILE = Path(__file__).with_name("requests.jsonl")

Servers = Mapping[str, Sequence[ToolDefinition]]
"""Tools by the ids of their servers."""


class Request(Frozen):
    """A request, and of each of its steps the alternative tools, as `server:tool`; no step if no tool fulfils it."""

    request: str
    tools: tuple[tuple[str, ...], ...]

    @property
    def right(self) -> set[str]:
        """Return the tools of all steps."""
        return {tool for step in self.tools for tool in step}


def read_requests() -> list[Request]:
    """Return all requests."""
    return [Request.model_validate_json(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def demo_servers(demo: Path) -> Servers:
    """Return the tools of the demo's servers, which are installed in `demo` if they are missing."""
    listed = TypeAdapter(dict[str, list[dict[str, object]]]).validate_python(raw_tools(demo_plan(demo).servers))
    wires = {server: [json.dumps(tool, ensure_ascii=False) for tool in tools] for server, tools in listed.items()}
    return {server: [ToolDefinition.from_wire(wire) for wire in tools] for server, tools in wires.items()}


def corpus(servers: Servers) -> list[CorpusServer]:
    """Return the servers as the write path lists them; an id is the declared name too."""
    listings = {server: Listing(server, PROTOCOL_VERSION, tuple(tools)) for server, tools in servers.items()}
    return [CorpusServer(server, server, listing) for server, listing in listings.items()]
