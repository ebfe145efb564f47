"""tool-compass over MCP in memory, with the bundled model in place of Ollama's."""

from __future__ import annotations

import importlib
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peer_systems.answering import Search, TimedEmbedder, Tool, ToolKey, answer, keys, one_by_one

# The dimension of tool-compass for every model: trailing zeros change no cosine.
DIMENSION = 768
COPY = re.compile(r" ~\d+ \|")


class Embedding:
    """The model in the form that tool-compass takes."""

    base_url = "bundled"
    model = "bundled"

    def __init__(self, embedder: TimedEmbedder) -> None:
        self._embedder = embedder

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return shape (768,), float32."""
        return np.pad(self._embedder.query(text), (0, DIMENSION - self._embedder.dimension))

    async def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), 768), float32; a copy has the vector of its tool."""
        rows = self._embedder.passages([COPY.sub(" |", text) for text in texts])
        return np.pad(rows, ((0, 0), (0, DIMENSION - self._embedder.dimension)))


@asynccontextmanager
async def tool_compass(tools: Sequence[Tool], embedder: TimedEmbedder) -> AsyncGenerator[Search]:
    """Yield tool-compass's gateway over an index of all tools, with its defaults: hybrid, exact names first.

    Chains of tools and usage statistics are left out, which find no tool and take time.
    """
    gateway: Any = importlib.import_module("gateway")
    indexer, config = importlib.import_module("indexer"), importlib.import_module("config").CompassConfig
    gateway._config = config(  # else it is read from the user's home
        sync_check_on_startup=False, chain_indexing_enabled=False, analytics_enabled=False
    )
    named = keys(tools, _qualified_name)
    with TemporaryDirectory(prefix="tool-compass-") as directory:
        files = Path(directory)
        index = indexer.CompassIndex(files / "compass.hnsw", files / "tools.db", Embedding(embedder))
        await index.build_index([_definition(name, tool, gateway, indexer) for name, tool in named.items()], False)
        gateway._compass_index = index  # else it is looked for in the installed package

        connected = importlib.import_module("mcp.shared.memory").create_connected_server_and_client_session
        async with connected(gateway.mcp) as client:

            async def find(text: str, k: int) -> list[ToolKey]:
                arguments = {"intent": text, "top_k": k, "min_confidence": 0.0, "include_chains": False}
                result = await client.call_tool("compass", arguments)
                return [named[match["tool"]].key for match in result.structuredContent["result"]["matches"]]

            yield one_by_one(find)


def _qualified_name(tool: Tool) -> str:
    return f"{tool.server}:{tool.name} ~{tool.copy}" if tool.copy else f"{tool.server}:{tool.name}"


def _definition(name: str, tool: Tool, gateway: Any, indexer: Any) -> Any:
    """Return what its own sync makes of a listed tool."""
    properties = tool.input_schema.get("properties", {})
    return indexer.ToolDefinition(
        name=name,
        description=tool.description,
        category=gateway.categorize_tool(tool.name, tool.description),
        server=tool.server,
        parameters={parameter: _type(schema) for parameter, schema in properties.items()},
    )


def _type(schema: Any) -> str:
    match schema:
        case {"type": [*types]}:
            return "/".join(map(str, types))
        case {"type": str() as only}:
            return only
        case _:
            return "any"


if __name__ == "__main__":
    answer(tool_compass)
