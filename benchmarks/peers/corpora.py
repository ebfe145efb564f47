"""The tools that all systems are given: the corpora as they are, or repeated to a size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.retrieval.data import read_servers


def write_tools(corpora: Iterable[Path], file: Path, size: int | None = None) -> int:
    """Write the tools of these corpora, `size` of them if it is given, and return their number.

    A corpus that is too small is repeated: the copies of a tool differ in nothing but the server that has them.
    """
    tools = list(_tools(corpora))
    repeated = ({**tool, "copy": copy} for copy in count() for tool in tools)
    written = 0
    with file.open("w", encoding="utf-8") as lines:
        for written, tool in enumerate(islice(repeated, size or len(tools)), start=1):  # noqa: B007  # the last is returned
            lines.write(json.dumps(tool) + "\n")
    return written


def _tools(corpora: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for server in read_servers(corpora):
        for tool in server.listing.tools:
            schema = tool.as_object()["inputSchema"]
            yield {"server": server.name, "name": tool.name, "description": tool.description, "inputSchema": schema}
