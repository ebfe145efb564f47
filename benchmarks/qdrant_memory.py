"""`python -m benchmarks.qdrant_memory`: the memory that a Qdrant server needs for a tool, with all payload indexes.

Fills an empty server of this machine at `QDRANT_URL` with real definitions and random vectors. The direction of a
vector does not change memory.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from benchmarks import qdrant
from benchmarks.command import DATA, command, run_benchmark
from benchmarks.qdrant import indexed_vectors, server_process
from benchmarks.retrieval.data import read_servers
from benchmarks.search.catalogue import PreparedServer, enough, fill, prepare
from benchmarks.throughput.machine import Conditions, Machine, Watch, this_machine
from benchmarks.throughput.report import table
from shared.index.client import ServerClient
from shared.index.server import ServerEngine
from shared.index.versions import IndexStore, IndexVersion, tools_spec
from shared.settings import load_settings

SIZES = (20_000, 80_000)
CORPUS_TOOLS = 5_000
DIMENSION = 384
GROUPS = 100
KIB = 1_024


class Size(BaseModel):
    """Memory of the server with so many tools, in bytes, when its optimizers are idle.

    `allocated` is on its heap. `resident` has also the pages of its files, which hold the vectors and the graph.
    """

    model_config = ConfigDict(frozen=True)

    tools: int
    allocated: int
    resident: int
    indexed_vectors: int


class Results(BaseModel):
    """One run; `empty` is the server before the first tool."""

    model_config = ConfigDict(frozen=True)

    made_at: str
    machine: Machine
    conditions: Conditions
    server: str
    empty: Size
    sizes: tuple[Size, ...]

    def kib_per_tool(self) -> float:
        """Return the resident KiB of a tool at the largest size, without the memory of the empty server."""
        largest = self.sizes[-1]
        return (largest.resident - self.empty.resident) / largest.tools / KIB


class _RandomEmbedder:
    """Unit vectors of random direction."""

    model = "toolscale/random"
    dimension = DIMENSION

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = self._random.standard_normal((len(texts), DIMENSION), dtype=np.float32)
        unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return unit

    def query(self, text: str) -> NDArray[np.float32]:
        unit: NDArray[np.float32] = self.passages([text])[0]
        return unit


def run(url: str, sizes: Sequence[int], data: Path) -> Results:
    """Fill the server with so many tools, once for each size, and read its memory."""
    watch = Watch("qdrant memory")
    engine = ServerEngine(ServerClient(url, load_settings().qdrant_api_key))
    if engine.names():
        raise SystemExit(f"{url} has collections; this benchmark needs an empty server")
    empty = _measured(url, 0, 0)
    prepared = prepare(enough(read_servers([data / "corpora" / "haystack.jsonl"]), CORPUS_TOOLS), _RandomEmbedder())
    return Results(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=this_machine(),
        server=qdrant.read(url, "/")["version"],
        empty=empty,
        sizes=tuple(_filled(engine, url, tools, prepared) for tools in sizes),
        conditions=watch.conditions(),
    )


def _filled(engine: ServerEngine, url: str, tools: int, prepared: Sequence[PreparedServer]) -> Size:
    version = IndexVersion(_RandomEmbedder.model, DIMENSION)
    store = IndexStore(engine)
    store.ensure(version)
    fill(store.index(version), prepared, tools, GROUPS)
    indexed = indexed_vectors(url, tools_spec(version).name)
    measured = _measured(url, tools, indexed)
    print(f"{tools} tools: {measured.resident / tools / KIB:.2f} KiB resident for each", flush=True)
    engine.drop(tools_spec(version).name)
    return measured


def _measured(url: str, tools: int, indexed_vectors: int) -> Size:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        found = re.findall(r"^memory_allocated_bytes (\d+)$", response.read().decode(), re.MULTILINE)
    resident = server_process(url).memory_info().rss
    return Size(tools=tools, allocated=int(found[0]), resident=resident, indexed_vectors=indexed_vectors)


def read(directory: Path) -> Results:
    """Return the results that are kept in this directory."""
    return Results.model_validate_json((directory / "qdrant_memory.json").read_bytes())


def render(results: Results) -> str:
    """Return the report as Markdown."""
    rows = [
        (f"{size.tools:,}", f"{size.indexed_vectors:,}", *(f"{number / 2**20:,.0f}" for number in _memory(size)))
        for size in (results.empty, *results.sizes)
    ]
    return "\n".join(
        [
            "# Memory of a Qdrant server",
            "",
            "Rendered from `qdrant_memory.json` by `python -m benchmarks.qdrant_memory --render`.",
            f"Qdrant {results.server}, {results.made_at}, {results.machine.processor}, {results.machine.cores} cores.",
            "The definitions are real, the vectors random, and all payload indexes of the product exist.",
            "",
            *table(("tools", "vectors in a graph", "MiB allocated", "MiB resident"), rows),
            "",
            f"A tool takes {results.kib_per_tool():.2f} KiB of resident memory.",
            "",
        ]
    )


def _memory(size: Size) -> tuple[int, int]:
    return size.allocated, size.resident


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    parser = command("qdrant_memory")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora")
    arguments = parser.parse_args()
    sizes = (200, 400) if arguments.quick else SIZES
    run_benchmark("qdrant_memory", arguments, lambda: run(_empty_server(), sizes, arguments.data), Results, render)


def _empty_server() -> str:
    url = load_settings().qdrant_url
    if url is None:
        raise SystemExit("QDRANT_URL is not set; this benchmark needs an empty Qdrant server")
    return url


if __name__ == "__main__":
    main()
