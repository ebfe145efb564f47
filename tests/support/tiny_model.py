"""A tiny network and tiny data, so that a training runs in seconds; its figures mean nothing."""

from __future__ import annotations

import numpy as np

from benchmarks.model.data import MISSING, NAME_TOKENS, QUERY_TOKENS, TEXT_TOKENS, Data, filled, rows
from benchmarks.model.network import Weights

# Of a network like the bundled model's.
CHANNELS, INNER, WORDS, POSITIONS, LAYERS = 64, 128, 300, 64, 2
SERVERS, TOOLS = 8, 48
FIRST, LAST = 3, WORDS - 1


def tiny_weights() -> Weights:
    """Return random weights of two layers; the same each time."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.1, shape).astype(np.float32)
        for name, shape in _shapes().items()
    }


def _shapes() -> dict[str, list[int]]:
    shapes = {
        "embeddings.word_embeddings.weight": [WORDS, CHANNELS],
        "embeddings.position_embeddings.weight": [POSITIONS, CHANNELS],
        "embeddings.token_type_embeddings.weight": [2, CHANNELS],
        **_parameters("embeddings.LayerNorm", [CHANNELS]),
    }
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _parameters(f"{layer}attention.{part}", [CHANNELS, CHANNELS])
        shapes |= _parameters(layer + "intermediate.dense", [INNER, CHANNELS])
        shapes |= _parameters(layer + "output.dense", [CHANNELS, INNER])
        shapes |= _parameters(layer + "attention.output.LayerNorm", [CHANNELS])
        shapes |= _parameters(layer + "output.LayerNorm", [CHANNELS])
    return shapes


def _parameters(name: str, shape: list[int]) -> dict[str, list[int]]:
    return {name + ".weight": shape, name + ".bias": shape[:1]}


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
    )
