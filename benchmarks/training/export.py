"""Trained weights as the file that the product runs, and checks of that file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.quantisation.graph import Graph, onnx, write_model
from benchmarks.quantisation.network import WORDS, Array, Range, Weights, positions, random_texts, ranges

MAX_BYTES = 30_000_000


class FloatGraph(Graph):
    """The same graph in float32, as the reference of the forward pass and of the quantised file."""

    def _words(self) -> str:
        return self._node("Gather", [self._constant("words", self._weights[WORDS]), "input_ids"])

    def _product(self, name: str, x: str, matrix: Array, bias: Array, found: Range) -> str:
        del found  # float32 has no scales
        product = self._node("MatMul", [x, self._constant(name + ".w", matrix)])
        return self._node("Add", [product, self._constant(name + ".bias", bias)])


def exported(weights: Weights, directory: Path, texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Write `model.onnx` and `float32.onnx`, and return the figures of the first.

    Raises ValueError if the file is too large for the product, or a vector depends on its batch.
    """
    directory.mkdir(parents=True, exist_ok=True)
    found = ranges(weights, random_texts(len(weights[WORDS]), len(positions(weights))))
    write_model(weights, found, directory / "model.onnx")
    write_float32(weights, directory / "float32.onnx")
    return _checked(directory, texts)


def write_float32(weights: Weights, path: Path) -> None:
    """Write the graph in float32."""
    # Factors that smooth the channels cancel without rounding to 8 bits, so a few texts are enough.
    few = ranges(weights, random_texts(len(weights[WORDS]), len(positions(weights)))[:8])
    onnx.save(FloatGraph(weights, few).model(), str(path))


def vectors(model: Path, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return what ONNX Runtime returns for each text by itself, shape (texts, channels)."""
    session = _session(model)
    return np.vstack([session.run(None, {"input_ids": np.array([text], dtype=np.int64)})[0] for text in texts])


def _checked(directory: Path, texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    path = directory / "model.onnx"
    cosines = (vectors(path, texts) * vectors(directory / "float32.onnx", texts)).sum(axis=1)
    figures: dict[str, Any] = {
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "cosine_to_float32": {"mean": float(cosines.mean()), "lowest": float(cosines.min())},
        "largest_difference_by_batch": difference_by_batch(path, texts),
    }
    if figures["bytes"] > MAX_BYTES or figures["largest_difference_by_batch"] > 1e-5:
        raise ValueError(f"{path} is no model for the product: {figures}")
    return figures


def difference_by_batch(model: Path, texts: Sequence[Sequence[int]]) -> float:
    """Return the largest difference of a number in a vector, in a batch of texts of one length and by itself."""
    length = min(map(len, texts))
    equal = [list(text[:length]) for text in texts]
    together = _session(model).run(None, {"input_ids": np.array(equal, dtype=np.int64)})[0]
    return float(np.abs(together - vectors(model, equal)).max())


def _session(path: Path) -> Any:
    onnxruntime = import_module("onnxruntime")
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
