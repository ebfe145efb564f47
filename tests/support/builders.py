"""Builders of write-side values, and a write path on in-memory neighbours."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.catalog import Encoding, Listing, ToolDefinition
from shared.errors import CountFailed, ServerError
from shared.events import ServerAnnouncement, ServerChanged, ServerDown, ServerRef, ServerUp
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.text.tokens import Counter, estimate, estimate_tool
from tests.support.fakes import FakeEmbedder, FakeIndex
from workers.dependencies import Dependencies

RETRY_POLICY = RetryPolicy(first_s=0.05, longest_s=1.0)

URL = "http://127.0.0.1:9/mcp"


def definition(name: str, description: str = "does something", **properties: Any) -> ToolDefinition:
    """Return a tool definition; keyword arguments become parameters."""
    schema = {"type": "object", "properties": properties}
    return ToolDefinition.from_wire(json.dumps({"name": name, "description": description, "inputSchema": schema}))


def listing(*tools: ToolDefinition, declared_name: str = "scripted") -> Listing:
    """Return a complete listing of these tools."""
    return Listing(declared_name, "2026-07-28", tools)


def up(
    server_id: str = "s", groups: Sequence[str] = (), url: str = URL, source: str = "toolscale", **labels: str
) -> ServerUp:
    """Return a server-up event."""
    announcement = ServerAnnouncement(server_id=server_id, url=url, groups=frozenset(groups), labels=labels)
    return ServerUp(data=announcement, source=source)


def up_stdio(server_id: str = "s") -> ServerUp:
    """Return a server-up event of a stdio server."""
    return ServerUp(data=ServerAnnouncement(server_id=server_id, transport="stdio"))


def down(server_id: str = "s") -> ServerDown:
    """Return a server-down event."""
    return ServerDown(data=ServerRef(server_id=server_id))


def changed(server_id: str = "s") -> ServerChanged:
    """Return a server-changed event."""
    return ServerChanged(data=ServerRef(server_id=server_id))


@dataclass
class World:
    """The listing, or the error, of each server at a reconciliation. `listed` records the servers listed."""

    servers: dict[str, Listing | ServerError] = field(default_factory=dict[str, "Listing | ServerError"])
    listed: list[str] = field(default_factory=list[str])

    def list_server(self, intent: Intent) -> Listing:
        self.listed.append(intent.server_id)
        found = self.servers[intent.server_id]
        if isinstance(found, ServerError):
            raise found
        return found


@dataclass
class CountedTexts:
    """A counter that remembers what it counted."""

    texts: list[str] = field(default_factory=list[str])

    def __call__(self, text: str) -> int:
        self.texts.append(text)
        return estimate(text)


@dataclass
class Clock:
    """A clock that stands still, except for the seconds that a test adds."""

    ahead_s: float = 0.0
    began_s: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.began_s + self.ahead_s


@dataclass
class WritePath:
    """A write path whose neighbours can be looked into, and whose intents follow `clock`."""

    deps: Dependencies
    world: World
    index: FakeIndex
    embedder: FakeEmbedder
    counted: CountedTexts
    clock: Clock

    def tool_names(self, server_id: str = "s") -> set[str]:
        """Return the names of the tools that the index holds of a server."""
        return set(self.index.tool_states(server_id))


def write_path(directory: Path, *, failing: frozenset[Encoding] = frozenset()) -> WritePath:
    """Return a write path in which the encodings in `failing` cannot count."""
    world, index, embedder, counted = World(), FakeIndex(), FakeEmbedder(), CountedTexts()
    counters: dict[Encoding, Counter] = {"cl100k_base": counted, "o200k_base": estimate}
    counters |= dict.fromkeys(failing, _fail)
    clock = Clock()
    intents = Intents(SqliteStorage(directory / "intents.sqlite3", clock=clock), RETRY_POLICY)
    deps = Dependencies(intents, index, embedder, counters, world.list_server)
    return WritePath(deps, world, index, embedder, counted, clock)


def estimated_counts(server_id: str, tool: ToolDefinition) -> dict[Encoding, int]:
    """Return the wire counts that `write_path` gives to a tool: its counters estimate."""
    estimated = estimate(tool.wire)
    return {"cl100k_base": estimated, "o200k_base": estimated, "heuristic": estimate_tool(server_id, tool)}


def _fail(text: str) -> int:
    raise CountFailed(f"no count for {len(text)} characters")
