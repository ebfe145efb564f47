"""The network in numpy: its weights, the ranges of its activations, and the scales of both in 8 bits.

A layer has four products with a weight matrix; their inputs are named by `INPUTS`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Weights = Mapping[str, Array]

HEAD_SIZE = 32
EPSILON = 1e-12
WORDS = "embeddings.word_embeddings.weight"
INPUTS = ("attention", "context", "hidden", "output")
CLS, SEP, FIRST_WORD = 101, 102, 999
# The share of the outliers that moves from the activations into the weights; chosen by cosine to float32.
SMOOTHING = 0.7


@dataclass(frozen=True, slots=True)
class Range:
    """The lowest and the highest value of each channel; shape (channels,)."""

    low: Array
    high: Array

    def joined(self, other: Range) -> Range:
        """Return the range that contains both."""
        return Range(np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    def divided(self, scales: Array) -> Range:
        """Return the range of the channels divided by these scales."""
        return Range(self.low / scales, self.high / scales)

    @property
    def largest(self) -> Array:
        """Return the largest absolute value of each channel."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


Ranges = dict[tuple[int, str], Range]
"""Ranges by layer and name of the input."""


def read_weights(path: Path) -> Weights:
    """Return the float32 tensors of a safetensors file, by name."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    tensors = {name: tensor for name, tensor in header.items() if tensor.get("dtype") == "F32"}
    return {name: _tensor(content, 8 + size, tensor) for name, tensor in tensors.items()}


def _tensor(content: bytes, base: int, tensor: Mapping[str, list[int]]) -> Array:
    start, end = tensor["data_offsets"]
    values = np.frombuffer(content, np.float32, (end - start) // 4, base + start)
    return values.reshape(tensor["shape"])


def write_weights(weights: Weights, path: Path) -> None:
    """Write these tensors as a safetensors file; the same tensors give the same bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    content: list[bytes] = []
    size = 0
    for name, values in weights.items():
        content.append(np.ascontiguousarray(values, dtype=np.float32).tobytes())
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [size, size + len(content[-1])]}
        size += len(content[-1])
    encoded = json.dumps(header).encode()
    path.write_bytes(b"".join([struct.pack("<Q", len(encoded)), encoded, *content]))


def layers(weights: Weights) -> int:
    """Return the number of layers."""
    return 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))


def positions(weights: Weights) -> Array:
    """Return what is added to a word's vector at each position; shape (positions, channels)."""
    first_type: Array = weights["embeddings.token_type_embeddings.weight"][0]
    added: Array = weights["embeddings.position_embeddings.weight"] + first_type
    return added


def random_texts(words: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Return 340 sequences of random tokens: ranges of activations need no text, and no text favours a subject."""
    rng = np.random.default_rng(seed)
    lengths = [*rng.integers(1, longest // 4 - 2, 300), *rng.integers(longest // 4 - 2, longest - 1, 40)]
    first = min(FIRST_WORD, words // 2)
    return [[CLS % words, *rng.integers(first, words, length).tolist(), SEP % words] for length in lengths]


def ranges(weights: Weights, texts: Iterable[list[int]]) -> Ranges:
    """Return the ranges of all inputs over these texts."""
    found: Ranges = {}
    for text in texts:
        for key, values in activations(weights, text).items():
            here = Range(values.min(axis=0), values.max(axis=0))
            found[key] = found[key].joined(here) if key in found else here
    return found


def activations(weights: Weights, tokens: list[int]) -> dict[tuple[int, str], Array]:
    """Return the inputs of the products, shape (tokens, channels); the key (layers, "last") has the last values."""
    word = weights[WORDS][tokens]
    x = _normalised(word + positions(weights)[: len(tokens)], "embeddings.LayerNorm", weights)
    found: dict[tuple[int, str], Array] = {}
    for number in range(layers(weights)):
        layer = f"encoder.layer.{number}."
        context = _context(x, layer + "attention.self.", weights)
        attended = _linear(context, layer + "attention.output.dense", weights)
        hidden = _normalised(x + attended, layer + "attention.output.LayerNorm", weights)
        output = _gelu(_linear(hidden, layer + "intermediate.dense", weights))
        found |= {(number, name): at for name, at in zip(INPUTS, (x, context, hidden, output), strict=True)}
        x = _normalised(hidden + _linear(output, layer + "output.dense", weights), layer + "output.LayerNorm", weights)
    return found | {(layers(weights), "last"): x}


def vector(weights: Weights, tokens: list[int]) -> Array:
    """Return the text's vector, shape (channels,), unit length."""
    mean = activations(weights, tokens)[layers(weights), "last"].mean(axis=0)
    unit: Array = mean / np.linalg.norm(mean)
    return unit


def quantised(matrix: Array, axis: int) -> tuple[NDArray[np.int8], Array]:
    """Return the matrix in 8 bits and its scales, of which there is one for each index of the other axis."""
    return _rounded(matrix, np.abs(matrix).max(axis=axis, keepdims=True))


def quantised_factors(matrix: Array) -> tuple[NDArray[np.int8], Array]:
    """Return a factor of a product in 8 bits, with an even number of rows, and a scale for each column.

    Processors without VNNI add the products of two adjacent rows in 16 bits, and 255 * 128 fits: so two adjacent
    values of a column are at most 128 together.
    """
    values = np.abs(matrix)
    return _rounded(matrix, (values[0::2] + values[1::2]).max(axis=0, keepdims=True))


def _rounded(matrix: Array, largest: Array) -> tuple[NDArray[np.int8], Array]:
    scales = (np.maximum(largest, 1e-12) / 127).astype(np.float32)
    return np.clip(np.rint(matrix / scales), -127, 127).astype(np.int8), scales


def smoothing(activations: Range, matrix: Array) -> Array:
    """Return the factor by which each channel of the input is divided; shape (channels,), geometric mean 1.

    The channel's weights are multiplied by it, so that outliers of a few channels do not take the whole range.
    Xiao et al., SmoothQuant, ICML 2023.
    """
    of_activations = np.maximum(activations.largest, np.float32(1e-5)) ** SMOOTHING
    of_weights = np.maximum(np.abs(matrix).max(axis=1), np.float32(1e-5)) ** (1 - SMOOTHING)
    factors = of_activations / of_weights
    smooth: Array = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
    return smooth


def _linear(x: Array, name: str, weights: Weights) -> Array:
    y: Array = x @ weights[name + ".weight"].T + weights[name + ".bias"]
    return y


def _normalised(x: Array, name: str, weights: Weights) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
    y: Array = centred / deviation * weights[name + ".weight"] + weights[name + ".bias"]
    return y


def _context(x: Array, name: str, weights: Weights) -> Array:
    query, key, value = (_heads(_linear(x, name + part, weights)) for part in ("query", "key", "value"))
    scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(HEAD_SIZE))
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context: Array = (shares / shares.sum(axis=-1, keepdims=True)) @ value
    return context.transpose(1, 0, 2).reshape(len(x), -1)


def _heads(x: Array) -> Array:
    return x.reshape(len(x), -1, HEAD_SIZE).transpose(1, 0, 2)


def _gelu(x: Array) -> Array:
    """Return the approximation with tanh, within 0.001: exact enough for ranges. Hendrycks and Gimpel, 2016."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    y: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y
