"""The network as an ONNX graph in 8 bits, with constant scales of the activations.

A product has a scale for each column of its weights, and one for its input, so a vector does not depend on its batch.
The same machine writes the same bytes; elsewhere the last bits of a scale may differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.model.network import (
    EPSILON,
    HEAD_SIZE,
    WORDS,
    Array,
    Range,
    Ranges,
    Weights,
    layers,
    positions,
    quantised,
    quantised_factors,
    random_texts,
    ranges,
    smoothing,
    vector,
)

# onnx is in an environment of its own, where type checkers do not look.
onnx: Any = import_module("onnx")
helper: Any = import_module("onnx.helper")
numpy_helper: Any = import_module("onnx.numpy_helper")

MICROSOFT = "com.microsoft"
OPSETS = {"": 20, MICROSOFT: 1}
IR_VERSION = 10
MAX_BYTES = 30_000_000
# A number of a vector in a batch and by itself.
SAME_VECTOR = 1e-5


class Graph:
    """A graph in the making: its nodes and constants."""

    def __init__(self, weights: Weights, ranges: Ranges) -> None:
        self._weights = weights
        self._ranges = ranges
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}

    def model(self) -> Any:
        """Return the model: token ids of shape (batch, tokens) to unit vectors of shape (batch, channels)."""
        x = self._embedded()
        for number in range(layers(self._weights)):
            x = self._layer(number, x)
        mean = self._node("ReduceMean", [x, self._constant("tokens", np.array([1]))], keepdims=0)
        unit = self._node("LpNormalization", [mean], axis=-1, p=2)
        ids = helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "tokens"])
        vectors = helper.make_tensor_value_info(unit, onnx.TensorProto.FLOAT, ["batch", self._channels])
        graph = helper.make_graph(self._nodes, "minilm", [ids], [vectors], list(self._constants.values()))
        versions = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        return helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION, producer_name="toolscale")

    @property
    def _channels(self) -> int:
        return int(self._weights[WORDS].shape[1])

    def _embedded(self) -> str:
        words, scales = quantised(self._weights[WORDS], axis=1)
        rows = self._node("Gather", [self._constant("words", words), "input_ids"])
        row_scales = self._node("Gather", [self._constant("word_scales", scales), "input_ids"])
        word = self._node("Mul", [self._node("Cast", [rows], to=onnx.TensorProto.FLOAT), row_scales])
        tokens = self._node("Shape", ["input_ids"], start=1, end=2)
        zero = self._constant("zero", np.array([0]))
        position = self._node("Slice", [self._constant("positions", positions(self._weights)), zero, tokens, zero])
        return self._normalised(self._node("Add", [word, position]), "embeddings.LayerNorm")

    def _layer(self, number: int, x: str) -> str:
        layer = f"encoder.layer.{number}."
        projected, bias = self._matrix(layer + "attention.output.dense")
        factors = smoothing(self._ranges[number, "context"], projected)
        context = self._node(
            "MultiHeadAttention",
            self._queries_keys_values(number, x, factors),
            domain=MICROSOFT,
            num_heads=self._channels // HEAD_SIZE,
        )
        context_range = self._ranges[number, "context"].divided(factors)
        attended = self._product(f"{number}.context", context, projected * factors[:, None], bias, context_range)
        x = self._normalised(self._node("Add", [x, attended]), layer + "attention.output.LayerNorm")
        hidden = self._linear(number, "hidden", x, *self._matrix(layer + "intermediate.dense"))
        active = self._node("Gelu", [hidden], domain=MICROSOFT)
        output = self._linear(number, "output", active, *self._matrix(layer + "output.dense"))
        return self._normalised(self._node("Add", [x, output]), layer + "output.LayerNorm")

    def _queries_keys_values(self, number: int, x: str, factors: Array) -> list[str]:
        """Return the three inputs of attention; the values are divided by the factors of the context."""
        parts = [self._matrix(f"encoder.layer.{number}.attention.self.{part}") for part in ("query", "key", "value")]
        parts[2] = (parts[2][0] / factors, parts[2][1] / factors)
        matrix, bias = np.concatenate([part[0] for part in parts], axis=1), np.concatenate([part[1] for part in parts])
        joined = self._linear(number, "attention", x, matrix, bias)
        sizes = self._constant("three", np.array([self._channels] * 3))
        return self._nodes_of("Split", [joined, sizes], 3, axis=-1)

    def _linear(self, number: int, name: str, x: str, matrix: Array, bias: Array) -> str:
        """Return x · matrix + bias, with smoothed channels."""
        found = self._ranges[number, name]
        factors = smoothing(found, matrix)
        smooth = self._node("Mul", [x, self._constant(f"{number}.{name}.smoothing", 1 / factors)])
        return self._product(f"{number}.{name}", smooth, matrix * factors[:, None], bias, found.divided(factors))

    def _product(self, name: str, x: str, matrix: Array, bias: Array, found: Range) -> str:
        low, high = min(float(found.low.min()), 0.0), max(float(found.high.max()), 0.0)
        step = np.float32((high - low) / 255)
        scale = self._constant(name + ".step", np.array(step))
        zero = self._constant(name + ".zero", np.array(np.clip(np.rint(-low / step), 0, 255), dtype=np.uint8))
        weights, scales = quantised_factors(matrix)
        constants = [self._constant(f"{name}.{part}", value) for part, value in (("w", weights), ("s", scales[0]))]
        inputs = [self._node("QuantizeLinear", [x, scale, zero]), constants[0], scale, constants[1], zero, ""]
        inputs.append(self._constant(name + ".bias", bias))
        return self._node("MatMulIntegerToFloat", inputs, domain=MICROSOFT)

    def _normalised(self, x: str, name: str) -> str:
        constants = [self._constant(f"{name}.{part}", self._weights[f"{name}.{part}"]) for part in ("weight", "bias")]
        return self._node("LayerNormalization", [x, *constants], axis=-1, epsilon=EPSILON)

    def _matrix(self, name: str) -> tuple[Array, Array]:
        return self._weights[name + ".weight"].T, self._weights[name + ".bias"]

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def _node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        return self._nodes_of(operator, inputs, 1, **attributes)[0]

    def _nodes_of(self, operator: str, inputs: list[str], outputs: int, **attributes: Any) -> list[str]:
        name = f"{operator}_{len(self._nodes)}"
        names = [f"{name}_{number}" for number in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, name=name, **attributes))
        return names


def export(weights: Weights, directory: Path, texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Write `model.onnx`, and return its figures; `texts` are tokens that it embeds.

    Raises:
        ValueError: the file is too large for the product, or a vector depends on its batch.
    """
    random, path = random_texts(len(weights[WORDS]), len(positions(weights))), directory / "model.onnx"
    onnx.save(Graph(weights, ranges(weights, random)).model(), str(path))
    exact = np.vstack([vector(weights, list(text)) for text in texts])
    cosines = (vectors(path, texts) * exact).sum(axis=1)
    figures: dict[str, Any] = {
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "cosine_to_float32": {"mean": float(cosines.mean()), "lowest": float(cosines.min())},
        "largest_difference_by_batch": difference_by_batch(path, texts),
    }
    if figures["bytes"] > MAX_BYTES or figures["largest_difference_by_batch"] > SAME_VECTOR:
        raise ValueError(f"{path} is no model for the product: {figures}")
    return figures


def vectors(model: Path, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return what ONNX Runtime returns for each text by itself, shape (texts, channels)."""
    session = _session(model)
    return np.vstack([session.run(None, {"input_ids": np.array([text], dtype=np.int64)})[0] for text in texts])


def difference_by_batch(model: Path, texts: Sequence[Sequence[int]]) -> float:
    """Return the largest difference of a number in a vector, in a batch of texts of one length and by itself."""
    length = min(map(len, texts))
    equal = [list(text[:length]) for text in texts]
    together = _session(model).run(None, {"input_ids": np.array(equal, dtype=np.int64)})[0]
    return float(np.abs(together - vectors(model, equal)).max())


def _session(model: Path) -> Any:
    return import_module("onnxruntime").InferenceSession(str(model), providers=["CPUExecutionProvider"])
