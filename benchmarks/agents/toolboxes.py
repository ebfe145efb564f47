"""The ways in which an agent gets tools: what each request to the model offers, and what becomes of a call."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mcp import Client, MCPError
from mcp.types import TextContent, Tool

Tools = Mapping[str, tuple[Client, Tool]]
"""The tools of the servers by the names that the model sees, each with the client that calls it."""

CLIENT_SEARCH = "tool_search"
FOUND = 8  # as many as find_tool returns at most without `limit`
K1, B = 1.2, 0.75


class Toolbox:
    """All tools in the prompt: those of the servers, or the few of Toolscale."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def offered(self) -> list[dict[str, Any]]:
        """Return the tools of the next request."""
        return [definition(name, tool) for name, (_, tool) in self._tools.items()]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the text of the result, or of the error."""
        if name not in self._tools:
            return f"There is no tool {name!r}."
        client, tool = self._tools[name]
        try:
            result = await client.call_tool(tool.name, arguments)
        except MCPError as error:
            return str(error)
        return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


class SearchedToolbox(Toolbox):
    """A search of the client in the prompt, and the tools that it found so far."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._loaded: list[str] = []
        self._words = {name: Counter(words(f"{name} {tool.description or ''}")) for name, (_, tool) in tools.items()}
        self._servers = ", ".join(sorted({name.partition("__")[0] for name in tools}))

    def offered(self) -> list[dict[str, Any]]:
        """Return the search and the loaded tools."""
        search = Tool(
            name=CLIENT_SEARCH,
            description=f"Searches the tools of {self._servers}, and loads those that it finds for the next request.",
            input_schema={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        )
        loaded = (definition(name, self._tools[name][1]) for name in self._loaded)
        return [definition(CLIENT_SEARCH, search), *loaded]

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Search, or call a tool; one that is not loaded is unknown."""
        if name == CLIENT_SEARCH:
            found = self._found(str(arguments.get("query", "")))
            self._loaded += [tool for tool in found if tool not in self._loaded]
            return f"Loaded: {', '.join(found)}" if found else "No tool was found."
        return await super().call(name, arguments) if name in self._loaded else f"There is no tool {name!r}."

    def _found(self, query: str) -> list[str]:
        """Return the names of the tools with the highest scores of BM25 (Robertson and Zaragoza, 2009)."""
        mean_length = sum(each.total() for each in self._words.values()) / max(len(self._words), 1)

        def idf(word: str) -> float:
            having = sum(word in each for each in self._words.values())
            return math.log(1 + (len(self._words) - having + 0.5) / (having + 0.5))

        def score(tool: str) -> float:
            counts = self._words[tool]
            norm = K1 * (1 - B + B * counts.total() / mean_length)
            return sum(idf(word) * counts[word] * (K1 + 1) / (counts[word] + norm) for word in set(words(query)))

        scores = {tool: score(tool) for tool in self._words}
        return [tool for tool in sorted(scores, key=lambda tool: -scores[tool])[:FOUND] if scores[tool] > 0]


def definition(name: str, tool: Tool) -> dict[str, Any]:
    """Return a tool as chat completions take it."""
    described = {"name": name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": described}


def words(text: str) -> list[str]:
    """Return the words of a text or a name, in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())
