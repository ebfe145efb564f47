"""The side of a system under test: a process that reads tools, reports when it is ready, and answers questions.

It runs in the environment of each system, so it needs nothing but the standard library, and what runs the
bundled model. Questions and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from shared.text.embedding import FastEmbedder

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


class TimedEmbedder:
    """The bundled model for every system, so that they differ in all but that, with a stopwatch.

    The file has the vectors of tools by the hashes of their texts, so that a second run does not embed them again.
    """

    def __init__(self, file: Path) -> None:
        self._model = FastEmbedder()
        self.model, self.dimension = self._model.model, self._model.dimension
        self._file = file
        self._rows: dict[str, NDArray[np.float32]] = {}
        self._spent_s = 0.0
        if file.exists():
            with np.load(file) as kept:
                self._rows = dict(zip(kept["hashes"].tolist(), kept["rows"], strict=True))

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return shape (len(texts), dimension), float32, unit rows."""
        with self._watched():
            hashes = [sha256(text.encode("utf-8", "replace")).hexdigest() for text in texts]
            new = {digest: text for digest, text in zip(hashes, texts, strict=True) if digest not in self._rows}
            self._rows.update(zip(new, self._model.passages(list(new.values())), strict=True))
            return np.array([self._rows[digest] for digest in hashes], dtype=np.float32).reshape(-1, self.dimension)

    def query(self, text: str) -> NDArray[np.float32]:
        """Return shape (dimension,), float32, unit length."""
        with self._watched():
            return self._model.query(text)

    def lap_s(self) -> float:
        """Return the seconds spent in the model since the last lap."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def keep(self) -> None:
        """Write the vectors of tools to their file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("wb") as file:
            np.savez(file, hashes=np.array(list(self._rows)), rows=np.array(list(self._rows.values()), np.float32))

    @contextmanager
    def _watched(self) -> Generator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s += time.perf_counter() - started


Build = Callable[[Sequence[Tool], TimedEmbedder], AbstractAsyncContextManager[Search]]
"""Start a system with these tools, and yield its search function."""


def read_tools(path: Path) -> list[Tool]:
    """Return the tools of a file of one JSON object a line."""
    with path.open(encoding="utf-8") as lines:
        return [
            Tool(line["server"], line["name"], line["copy"], line["description"], line["inputSchema"])
            for line in map(json.loads, lines)
        ]


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
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # standard output is for answers only
    asyncio.run(_answer(build, read_tools(Path(sys.argv[1])), TimedEmbedder(Path(sys.argv[2])), replies))


async def _answer(build: Build, tools: Sequence[Tool], embedder: TimedEmbedder, replies: TextIO) -> None:
    def reply(**fields: Any) -> None:
        replies.write(json.dumps(fields) + "\n")
        replies.flush()

    started = time.perf_counter()
    async with build(tools, embedder) as search:
        await search(["ready"], 1)  # some index lazily, at the first question
        ready_s = time.perf_counter() - started - embedder.lap_s()
        reply(ready_s=ready_s, memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        embedder.keep()
        for line in sys.stdin:
            question = json.loads(line)
            embedder.lap_s()
            started = time.perf_counter()
            ranked = await search(question["steps"], question["k"])
            reply(ranked=ranked, seconds=time.perf_counter() - started, embed_s=embedder.lap_s())


def keys(tools: Iterable[Tool], name: Callable[[Tool], str]) -> dict[str, Tool]:
    """Return the tools by the names that a system gives them; a number is added where two would be the same."""
    named: dict[str, Tool] = {}
    for tool in tools:
        proposed = name(tool)
        named[proposed if proposed not in named else f"{proposed}_{len(named)}"] = tool
    return named
