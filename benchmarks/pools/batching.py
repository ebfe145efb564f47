"""Whether texts of several servers should be embedded together: how much faster, and how far off the vectors are."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.pools.plan import Plan
from benchmarks.throughput.corpus import definitions, server_id
from shared.catalog import ToolDefinition
from shared.text.embedding import FastEmbedder, text_passage

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCHES = (1, 8, 32)
TOOLS_A_SERVER = 20


@dataclass(frozen=True, slots=True)
class Batched:
    """Texts per second in batches of this size; the lowest cosine between a batched and a single embedding."""

    size: int
    sorted_by_length: bool
    texts_per_s: float
    lowest_cosine: float


def _batched(embedder: FastEmbedder, texts: Sequence[str], size: int) -> NDArray[np.float32]:
    """Return shape (len(texts), dimension), unit rows, embedded `size` texts at a time."""
    return np.vstack([embedder.passages(texts[start : start + size]) for start in range(0, len(texts), size)])


def measure_batching(plan: Plan) -> list[Batched]:
    """Return each size of batch, with the texts in corpus order and sorted by length."""
    embedder = FastEmbedder()
    texts = _texts(plan)
    alone = _batched(embedder, texts, 1)  # and warm
    in_order = sorted(range(len(texts)), key=lambda position: len(texts[position]))
    orders = [(False, list(range(len(texts)))), (True, in_order)]
    rounds = [
        [
            _measured(embedder, [texts[position] for position in order], alone[order], size, by_length)
            for size in BATCHES
            for by_length, order in orders
        ]
        for _ in range(plan.rounds)
    ]
    return [max(same, key=lambda batch: batch.texts_per_s) for same in zip(*rounds, strict=True)]


def _measured(
    embedder: FastEmbedder, texts: Sequence[str], alone: NDArray[np.float32], size: int, by_length: bool
) -> Batched:
    started = time.perf_counter()
    rows = _batched(embedder, texts, size)
    seconds = time.perf_counter() - started
    return Batched(size, by_length, len(texts) / seconds, float(np.sum(rows * alone, axis=1).min()))


def _texts(plan: Plan) -> list[str]:
    """Return texts of many servers, in turn, as looks that embed at the same time would bring them."""
    servers = [server_id(number) for number in range(-(-plan.texts // TOOLS_A_SERVER))]
    offered = [definitions(server, TOOLS_A_SERVER, plan.seed) for server in servers]
    tools = [tool for together in zip(*offered, strict=True) for tool in together]
    return [text_passage(ToolDefinition.from_wire(json.dumps(tool))) for tool in tools][: plan.texts]
