"""The catalogues that are compared: a corpus alone, and beside replicas of one of its servers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from benchmarks.retrieval.data import CorpusServer
from benchmarks.retrieval.system import System, ingested
from benchmarks.throughput.catalogue import put_replicas
from shared.index.tools import ToolIndex
from shared.text.embedding import Embedder

ALONE = "corpus alone"


@contextmanager
def opened(
    servers: Sequence[CorpusServer], replicated: str, counts: Sequence[int], embedder: Embedder
) -> Generator[dict[str, System]]:
    """Yield the corpus alone and, for each count, with so many copies of the server named `replicated`, by their names.

    The copies are replicas in one catalogue, and unrelated in another. Each catalogue has an index of its own.
    """
    (server,) = (server for server in servers if server.name == replicated)
    with ExitStack() as stack:
        systems = {ALONE: stack.enter_context(ingested(servers, embedder))}
        for count in counts:
            ids = [f"replica-{number:04}" for number in range(count)]
            for name in (with_replicas(count), with_unrelated(count)):
                system = stack.enter_context(ingested(servers, embedder))
                put_replicas(system.index, dict.fromkeys(ids, server.listing), embedder)
                systems[name] = replace(system, names=system.names | dict.fromkeys(ids, replicated))
            _unrelate(systems[with_unrelated(count)].index, ids)
        yield systems


def with_replicas(count: int) -> str:
    """Return the name of the catalogue with so many replicas."""
    return f"{count:,} replicas"


def with_unrelated(count: int) -> str:
    """Return the name of the catalogue with so many copies that the index cannot relate to each other."""
    return f"{count:,} unrelated copies"


def _unrelate(index: ToolIndex, server_ids: Sequence[str]) -> None:
    """Remove the digests of these servers and of their tools, and give each server another declared name."""
    index.clear_digests({state.digest for state in index.tool_states(server_ids[0]).values()})
    for record in index.servers():
        if record.server_id in server_ids:
            index.put_server(record.model_copy(update={"catalog_digest": "", "declared_name": record.server_id}))
