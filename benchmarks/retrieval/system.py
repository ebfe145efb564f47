"""The system under test: corpora ingested by the real write path, questions asked over MCP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp import Client

from benchmarks.retrieval.data import CorpusServer, Query, ToolKey
from query.catalogue import Catalogue
from query.mcp import build_server
from query.records import Ledger
from query.replicas import first_server
from query.tools.registry import builtin_tools
from shared.catalog import OPERATOR_SOURCE, Listing
from shared.events import ServerAnnouncement, ServerUp
from shared.index.tools import ToolIndex
from shared.index.versions import IndexVersion
from shared.intents.intent import Intent
from shared.intents.intents import open_intents
from shared.settings import load_settings
from shared.text.embedding import Embedder, FastEmbedder
from shared.text.tokens import counters
from tests.support.indexes import open_edge
from workers.dependencies import Dependencies
from workers.ingest import reconcile

# Nothing connects to a server: the corpus supplies the listings, and the product does the rest.
NOWHERE = "http://127.0.0.1:9/mcp"
PROGRESS_EVERY = 500

Find = Callable[[str | list[str], int], Awaitable[list[ToolKey]]]


@dataclass(frozen=True, slots=True)
class System:
    """An ingested corpus, ready to be asked."""

    index: ToolIndex
    embedder: Embedder
    names: dict[str, str]
    """Names of servers by their ids."""
    ids: dict[str, str]
    """Ids of servers by their names."""
    own: Callable[[str], None]
    """Announces a server by its id again, as the operator's file does."""
    ingested_s: float
    disk_mib: float

    def key(self, server_id: str, tool_name: str) -> ToolKey:
        """Return a tool as the files name it."""
        return self.names[server_id], tool_name

    def qualified(self, tools: Sequence[ToolKey]) -> list[str]:
        """Return these tools as the product names them, as far as their servers are in the corpus."""
        return [f"{self.ids[server]}:{name}" for server, name in tools if server in self.ids]


@contextmanager
def ingested(servers: Sequence[CorpusServer], embedder: Embedder | None = None) -> Generator[System]:
    """Yield a system that has looked at every one of these servers; without another embedder, with the model's own."""
    listings = {server.server_id: server.listing for server in servers}
    with (
        TemporaryDirectory(prefix="toolscale-retrieval-") as directory,
        _dependencies(directory, listings, embedder) as deps,
    ):
        started = time.perf_counter()
        for number, server in enumerate(servers, start=1):
            _announce_and_look(server.server_id, deps)
            if number % PROGRESS_EVERY == 0:
                print(f"  {number} of {len(servers)} servers, {time.perf_counter() - started:.0f} s", flush=True)
        yield System(
            index=deps.index,
            embedder=deps.embedder,
            names={server.server_id: server.name for server in servers},
            ids={server.name: server.server_id for server in servers},
            own=partial(_announce_and_look, deps=deps, source=OPERATOR_SOURCE),
            ingested_s=time.perf_counter() - started,
            disk_mib=_mib(Path(directory)),
        )


@asynccontextmanager
async def asking(system: System) -> AsyncGenerator[Find]:
    """Yield `find_tool`, asked over MCP: a description and the number of tools; none where nothing fits."""
    server = build_server(builtin_tools(Catalogue(system.index, system.embedder, Ledger(system.index))))
    async with Client(server) as client:
        yield partial(_find, client, system)


async def ask(system: System, queries: Sequence[Query], k: int, *, in_steps: bool) -> dict[str, Sequence[ToolKey]]:
    """Return what `find_tool` finds for each query."""
    async with asking(system) as find:
        return {query.id: await find(_description(query, in_steps=in_steps), k) for query in queries}


def _description(query: Query, *, in_steps: bool) -> str | list[str]:
    return list(query.steps) if in_steps and query.steps else query.text


async def _find(client: Client, system: System, description: str | list[str], k: int) -> list[ToolKey]:
    result = await client.call_tool("find_tool", {"tool_description": description, "limit": k})
    if result.is_error:
        raise RuntimeError(f"find_tool answered {description!r} with {result.content}")
    answer: dict[str, Any] = result.structured_content or {}
    shown = ((tool["name"], tool.get("served_by", {}).get("servers", ())) for tool in answer["tools"])
    return [system.key(*first_server(name, servers)) for name, servers in shown]


@contextmanager
def _dependencies(directory: str, listings: dict[str, Listing], embedder: Embedder | None) -> Generator[Dependencies]:
    settings = load_settings(data_dir=Path(directory))
    embedder = embedder or FastEmbedder(settings.embedding_model)

    def list_server(intent: Intent) -> Listing:
        return listings[intent.server_id]

    name = IndexVersion(embedder.model, embedder.dimension).name
    with closing(open_edge(settings.data_dir / "index", name, embedder.dimension)) as index:
        yield Dependencies(open_intents(settings), index, embedder, counters(), list_server)


def _announce_and_look(server_id: str, deps: Dependencies, source: str = "toolscale") -> None:
    up = ServerUp(data=ServerAnnouncement(server_id=server_id, url=NOWHERE), source=source)
    deps.intents.record(up, due_in_s=3600)
    reconcile(server_id, deps)


def _mib(directory: Path) -> float:
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file()) / 2**20
