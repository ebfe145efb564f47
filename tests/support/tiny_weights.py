"""Random weights of a network like the bundled model's, of two layers and 64 channels, as a safetensors file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.quantisation.network import write_weights

CHANNELS, INNER, WORDS, POSITIONS, LAYERS = 64, 128, 300, 64, 2


def write_tiny_weights(path: Path) -> None:
    """Write the weights to this file; the same each time."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.1, shape).astype(np.float32)
        for name, shape in _shapes().items()
    }
    write_weights(weights, path)


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
