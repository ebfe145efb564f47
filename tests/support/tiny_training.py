"""A tiny network and tiny data, so that a training runs in seconds; its figures mean nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.quantisation.network import Weights, read_weights
from benchmarks.training.data import MISSING, NAME_TOKENS, PIECE_TOKENS, QUERY_TOKENS, TEXT_TOKENS, Data, filled, rows
from tests.support.tiny_weights import WORDS, write_tiny_weights

SERVERS, TOOLS = 8, 48
FIRST, LAST = 3, WORDS - 1


def tiny_weights(directory: Path) -> Weights:
    """Return random weights of two layers."""
    path = directory / "tiny.safetensors"
    write_tiny_weights(path)
    return read_weights(path)


def tiny_data() -> Data:
    """Return tools of random tokens, and two requests of each with half of the tokens of its text."""
    rng = np.random.default_rng(0)
    names, texts = rng.integers(FIRST, LAST, (TOOLS, 4)), rng.integers(FIRST, LAST, (TOOLS, 12))
    wanted = np.tile(np.arange(TOOLS), 2)
    queries = [rng.choice(texts[tool], 6, replace=False).tolist() for tool in wanted]
    return Data(
        queries=rows(queries, QUERY_TOKENS),
        names=rows(names.tolist(), NAME_TOKENS),
        texts=rows(texts.tolist(), TEXT_TOKENS),
        servers=(np.arange(TOOLS) % SERVERS).astype(np.int32),
        relevant=filled([[int(tool)] for tool in wanted], 2, MISSING),
        styles=np.array(["task", "hard"] * TOOLS),
        pieces=rows(rng.integers(FIRST, LAST, (TOOLS, 24)).tolist(), PIECE_TOKENS),
    )
