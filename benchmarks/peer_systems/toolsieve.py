"""toolsieve over MCP in memory, with the bundled model in place of its default."""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peer_systems.answering import Search, TimedEmbedder, Tool, ToolKey, answer, one_by_one


class Embedding:
    """The model in the form that toolsieve takes."""

    def __init__(self, embedder: TimedEmbedder) -> None:
        self._embedder = embedder

    def embed(self, texts: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of these texts; a single text is a query."""
        return iter([self._embedder.query(texts[0])] if len(texts) == 1 else self._embedder.passages(texts))


@asynccontextmanager
async def toolsieve(tools: Sequence[Tool], embedder: TimedEmbedder) -> AsyncGenerator[Search]:
    """Yield toolsieve's server with its catalogue filled in, since it cannot list thousands of servers here."""
    os.environ["TOOLSIEVE_CONFIG"] = os.devnull
    server: Any = importlib.import_module("toolsieve.server")
    new_tool = importlib.import_module("toolsieve.aggregator").AggregatedTool
    server.Router = partial(server.Router, embedder=Embedding(embedder))
    catalogue = [new_tool(_server(tool), tool.name, tool.description, tool.input_schema) for tool in tools]
    by_name = {(_server(tool), tool.name): tool.key for tool in tools}

    async with importlib.import_module("fastmcp").Client(server.mcp) as client:
        server._state["router"] = server.Router(catalogue)  # it has no other way in

        async def find(text: str, k: int) -> list[ToolKey]:
            result = await client.call_tool("find_tools", {"query": text, "k": k})
            return [by_name[tool["server"], tool["name"]] for tool in _ranked(result.structured_content)]

        yield one_by_one(find)


def _server(tool: Tool) -> str:
    return f"{tool.server} {tool.copy}" if tool.copy else tool.server


def _ranked(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [content["tool"], *content["alternatives"]] if content["tool"] else []


if __name__ == "__main__":
    answer(toolsieve)
