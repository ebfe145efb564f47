"""Corpora and queries as files: one JSON object a line. They are read where they lie and never copied."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.catalog import Listing, ToolDefinition
from workers.fetch.definitions import read_definition

PROTOCOL_VERSION = "2026-07-28"
MAX_BYTES = 2 << 20
# Maximum length of a description for `find_tool`. Some queries contain an image as text, which a client omits.
MAX_CHARACTERS = 4_000

ToolKey = tuple[str, str]
"""A tool by its server's and its own name, as the files have them."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the tools it needs; `steps` are the annotators' own, empty where there are none."""

    id: str
    text: str
    steps: tuple[str, ...]
    relevant: tuple[ToolKey, ...]


@dataclass(frozen=True, slots=True)
class CorpusServer:
    """A server of a corpus. Its id is a number, since names of servers are no ids; the name is what it declares."""

    server_id: str
    name: str
    listing: Listing


def read_queries(path: Path) -> list[Query]:
    """Return the queries of a file."""
    return [_query(line) for line in _lines(path)]


def read_servers(paths: Iterable[Path]) -> list[CorpusServer]:
    """Return the servers of these corpora, each with its tools; of two tools of one name, the first."""
    tools: dict[str, dict[str, ToolDefinition]] = {}
    for line in (line for path in paths for line in _lines(path)):
        tool = definition(line)
        tools.setdefault(line["server"], {}).setdefault(tool.name, tool)
    return [
        CorpusServer(f"server-{number}", name, Listing(name, PROTOCOL_VERSION, tuple(own.values())))
        for number, (name, own) in enumerate(tools.items())
    ]


def definition(line: Mapping[str, Any]) -> ToolDefinition:
    """Return a line's tool, as the write path reads it from a server."""
    declared = {key: line[key] for key in ("name", "description", "inputSchema") if line.get(key) is not None}
    return read_definition(declared, PROTOCOL_VERSION, MAX_BYTES)[0]


def write_run(path: Path, ranked: Mapping[str, Sequence[ToolKey]]) -> None:
    """Write a run: for each query the tools found, best first."""
    lines = (
        {"id": query, "ranked": [{"server": server, "name": name} for server, name in tools]}
        for query, tools in ranked.items()
    )
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def read_run(path: Path) -> dict[str, list[ToolKey]]:
    """Return the run of a file that `write_run` wrote."""
    return {line["id"]: [(tool["server"], tool["name"]) for tool in line["ranked"]] for line in _lines(path)}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def _query(line: dict[str, Any]) -> Query:
    relevant = tuple((tool["server"], tool["name"]) for tool in line["relevant"])
    return Query(line["id"], line["query"][:MAX_CHARACTERS], tuple(line.get("subqueries") or ()), relevant)
