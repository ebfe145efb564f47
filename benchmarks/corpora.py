"""Real tools and queries of others: files of one JSON object a line, and a system that has ingested the tools.

The files are read where they lie and never copied.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from mcp import Client

from query.catalogue import Catalogue
from query.mcp import build_server
from query.records import Ledger
from query.replicas import first_server
from query.tools.registry import builtin_tools
from shared.catalog import OPERATOR_SOURCE, Listing, ToolDefinition
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
from workers.fetch.definitions import read_definition
from workers.ingest import reconcile

PROTOCOL_VERSION = "2026-07-28"
MAX_BYTES = 2 << 20
# Maximum length of a description for `find_tool`. Some queries contain an image as text, which a client omits.
MAX_CHARACTERS = 4_000
# Nothing connects to a server: the corpus supplies the listings, and the product does the rest.
NOWHERE = "http://127.0.0.1:9/mcp"
PROGRESS_EVERY = 500

ToolKey = tuple[str, str]
"""A tool by its server's and its own name, as the files have them."""

Find = Callable[[str | list[str], int], Awaitable[list[ToolKey]]]


class Answer(Protocol):
    """Asks `find_tool` for a page of at most `k` tools."""

    def __call__(self, description: str | list[str], k: int, cursor: str | None = None) -> Awaitable[Page]: ...


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the tools it needs; `steps` are the annotators' own, empty where there are none."""

    id: str
    text: str
    steps: tuple[str, ...]
    relevant: tuple[ToolKey, ...]

    def asked(self, *, in_steps: bool) -> list[str]:
        """Return its steps, or its text."""
        return list(self.steps) if in_steps and self.steps else [self.text]


@dataclass(frozen=True, slots=True)
class CorpusServer:
    """A server of a corpus. Its id is a number, since names of servers are no ids; the name is what it declares."""

    server_id: str
    name: str
    listing: Listing


def read_queries(path: Path) -> list[Query]:
    """Return the queries of a file."""
    return [
        Query(
            line["id"],
            line["query"][:MAX_CHARACTERS],
            tuple(line.get("subqueries") or ()),
            tuple((tool["server"], tool["name"]) for tool in line["relevant"]),
        )
        for line in read_lines(path)
    ]


def read_servers(paths: Iterable[Path]) -> list[CorpusServer]:
    """Return the servers of these corpora, each with its tools; of two tools of one name, the first."""
    tools: dict[str, dict[str, ToolDefinition]] = {}
    for line in (line for path in paths for line in read_lines(path)):
        tool = read_tool(line)
        tools.setdefault(line["server"], {}).setdefault(tool.name, tool)
    return [
        CorpusServer(f"server-{number}", name, Listing(name, PROTOCOL_VERSION, tuple(own.values())))
        for number, (name, own) in enumerate(tools.items())
    ]


def read_tool(line: Mapping[str, Any]) -> ToolDefinition:
    """Return a line's tool, as the write path reads it from a server."""
    declared = {key: line[key] for key in ("name", "description", "inputSchema") if line.get(key) is not None}
    return read_definition(declared, PROTOCOL_VERSION, MAX_BYTES)[0]


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file."""
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def write_run(path: Path, ranked: Mapping[str, Sequence[ToolKey]]) -> None:
    """Write a run: for each query the tools found, best first."""
    lines = (
        {"id": query, "ranked": [{"server": server, "name": name} for server, name in tools]}
        for query, tools in ranked.items()
    )
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class System:
    """An ingested corpus, ready to be asked."""

    index: ToolIndex
    embedder: Embedder
    names: dict[str, str]
    """Names of servers by their ids."""
    ids: Mapping[str, str]
    """Ids of servers by their names; of several that declare one, the last."""
    own: Callable[[str], None]
    """Announces a server by its id again, as the operator's file does."""

    def key(self, server_id: str, tool_name: str) -> ToolKey:
        """Return a tool as the files name it."""
        return self.names[server_id], tool_name

    def qualified(self, tools: Sequence[ToolKey]) -> list[str]:
        """Return these tools as the product names them, as far as their servers are in the corpus."""
        return [f"{self.ids[server]}:{name}" for server, name in tools if server in self.ids]


@contextmanager
def ingested(servers: Sequence[CorpusServer], embedder: Embedder | None = None) -> Generator[System]:
    """Yield a system whose write path has ingested these servers; without another embedder, with the bundled model."""
    listings = {server.server_id: server.listing for server in servers}
    started = time.perf_counter()
    with TemporaryDirectory(prefix="toolscale-corpus-") as directory:
        settings = load_settings(data_dir=Path(directory))
        embedder = embedder or FastEmbedder(settings.embedding_model)
        name = IndexVersion(embedder.model, embedder.dimension).name

        def list_server(intent: Intent) -> Listing:
            return listings[intent.server_id]

        def ingest(server_id: str, source: str = "toolscale") -> None:
            up = ServerUp(data=ServerAnnouncement(server_id=server_id, url=NOWHERE), source=source)
            deps.intents.record(up, due_in_s=3600)
            reconcile(server_id, deps)

        with closing(open_edge(settings.data_dir / "index", name, embedder.dimension)) as index:
            deps = Dependencies(open_intents(settings), index, embedder, counters(), list_server)
            for number, server in enumerate(servers, start=1):
                ingest(server.server_id)
                if number % PROGRESS_EVERY == 0:
                    print(f"  {number} of {len(servers)} servers, {time.perf_counter() - started:.0f} s", flush=True)
            yield System(
                index=index,
                embedder=embedder,
                names={server.server_id: server.name for server in servers},
                ids={server.name: server.server_id for server in servers},
                own=partial(ingest, source=OPERATOR_SOURCE),
            )


@dataclass(frozen=True, slots=True)
class Page:
    """Tools of an answer, best first, the tokens of their definitions, and the cursor of the next page."""

    tools: list[ToolKey]
    tokens: int
    cursor: str | None


@asynccontextmanager
async def answering(system: System) -> AsyncGenerator[Answer]:
    """Yield `find_tool`, asked over MCP: a description, the number of tools, and the cursor of a page before."""
    server = build_server(builtin_tools(Catalogue(system.index, system.embedder, Ledger(system.index))))
    async with Client(server) as client:

        async def answer(description: str | list[str], k: int, cursor: str | None = None) -> Page:
            arguments = {"tool_description": description, "limit": k} | ({"cursor": cursor} if cursor else {})
            result = await client.call_tool("find_tool", arguments)
            if result.is_error:
                raise RuntimeError(f"find_tool answered {description!r} with {result.content}")
            found: dict[str, Any] = result.structured_content or {}
            shown = ((tool["name"], tool.get("served_by", {}).get("servers", ())) for tool in found["tools"])
            tools = [system.key(*first_server(name, servers)) for name, servers in shown]
            return Page(tools, found["token_metrics"]["returned_tokens"], found.get("nextCursor"))

        yield answer


@asynccontextmanager
async def asking(system: System) -> AsyncGenerator[Find]:
    """Yield `find_tool`, asked over MCP: a description and the number of tools; none where nothing fits."""
    async with answering(system) as answer:

        async def find(description: str | list[str], k: int) -> list[ToolKey]:
            return (await answer(description, k)).tools

        yield find


async def ask(
    system: System, queries: Sequence[Query], k: int, *, in_steps: bool = False
) -> dict[str, Sequence[ToolKey]]:
    """Return what `find_tool` finds for each query; the steps of a task are asked in one call."""
    async with asking(system) as find:
        return {query.id: await find(_description(query.asked(in_steps=in_steps)), k) for query in queries}


def _description(steps: list[str]) -> str | list[str]:
    return steps[0] if len(steps) == 1 else steps
