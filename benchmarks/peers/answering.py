"""The side of a system under test: a process that reads tools, reports when it is ready, and answers questions.

Runs in the environment of each system, so this module needs nothing but the standard library, and numpy and fastembed
for the model. Questions and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

from benchmarks.peers.model import TimedEmbedder

ToolKey = tuple[str, str]
"""A tool by its server's and its own name."""

Search = Callable[[Sequence[str], int], Awaitable[Sequence[ToolKey]]]
"""Find the best tools, at most so many, for the steps of a task (one step, where the task is one text)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its server lists it. `copy` numbers the copies that fill a catalogue to a size; 0 is the original."""

    server: str
    name: str
    copy: int
    description: str
    input_schema: dict[str, Any]

    @property
    def key(self) -> ToolKey:
        """Return the tool's key; its copies share it."""
        return self.server, self.name


Build = Callable[[Sequence[Tool], TimedEmbedder], AbstractAsyncContextManager[Search]]
"""Start a system with these tools, and yield its search function."""


def read_tools(path: Path) -> list[Tool]:
    """Return the tools of a file of one JSON object a line."""
    with path.open(encoding="utf-8") as lines:
        return [_tool(json.loads(line)) for line in lines]


def one_by_one(find: Callable[[str, int], Awaitable[Sequence[ToolKey]]]) -> Search:
    """Return a search for a system that takes one text at a time: each step is asked, and the answers merged in turns.

    That is what a caller of such a system would have to do.
    """

    async def search(steps: Sequence[str], k: int) -> list[ToolKey]:
        found = [await find(step, k) for step in steps]
        in_turn = (tool for turn in zip_longest(*found) for tool in turn if tool is not None)
        return list(dict.fromkeys(in_turn))[:k]

    return search


def answer(build: Build) -> None:
    """Answer questions about the tools of the file that is the first argument; the second keeps their vectors."""
    tools, vectors = read_tools(Path(sys.argv[1])), Path(sys.argv[2])
    replies = _own_output()
    asyncio.run(_answer(build, tools, TimedEmbedder(vectors), replies))


async def _answer(build: Build, tools: Sequence[Tool], embedder: TimedEmbedder, replies: TextIO) -> None:
    started = time.perf_counter()
    async with build(tools, embedder) as search:
        await search(["ready"], 1)  # some index lazily, at the first question
        _say(replies, ready_s=time.perf_counter() - started - embedder.lap_s(), memory_mib=_peak_mib())
        embedder.keep()
        for line in sys.stdin:
            await _reply(json.loads(line), search, embedder, replies)


async def _reply(question: dict[str, Any], search: Search, embedder: TimedEmbedder, replies: TextIO) -> None:
    embedder.lap_s()
    started = time.perf_counter()
    ranked = await search(question["steps"], question["k"])
    _say(replies, ranked=ranked, seconds=time.perf_counter() - started, embed_s=embedder.lap_s())


def _say(replies: TextIO, **fields: Any) -> None:
    replies.write(json.dumps(fields) + "\n")
    replies.flush()


def _own_output() -> TextIO:
    """Return standard output for answers only; other output goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _tool(line: dict[str, Any]) -> Tool:
    return Tool(line["server"], line["name"], line.get("copy", 0), line["description"], line["inputSchema"])


def keys(tools: Iterable[Tool], name: Callable[[Tool], str]) -> dict[str, Tool]:
    """Return the tools by the names that a system gives them; a number is added where two would be the same."""
    named: dict[str, Tool] = {}
    for tool in tools:
        proposed = name(tool)
        named[proposed if proposed not in named else f"{proposed}_{len(named)}"] = tool
    return named
