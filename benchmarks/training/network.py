"""The network in JAX, for rows that hold several texts. Tokens of the same text attend to each other.

Parameters have the names and shapes of the published weights. `benchmarks.quantisation.network` is the same network
for one text in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.quantisation.network import EPSILON, HEAD_SIZE, layers
from benchmarks.training.packing import Rows, packed

# JAX is in an environment of its own, where type checkers do not look.
jax: Any = import_module("jax")
jnp: Any = import_module("jax.numpy")

EMBEDDINGS = "embeddings."
CHUNK = 512

Parameters = Mapping[str, Any]
"""Arrays of numpy or JAX, by name."""


def unit_vectors(parameters: Parameters, rows: Rows, count: int) -> Any:
    """Return the vectors of the texts 0 to `count` - 1, shape (count, channels), unit rows."""
    is_own = rows.owners[:, None, :, None] == rows.owners[:, None, None, :]
    x = _embedded(parameters, rows)
    for number in range(layers(parameters)):
        x = _layer(parameters, f"encoder.layer.{number}.", x, is_own)
    owners = jnp.where(rows.owners < 0, count, rows.owners).reshape(-1)
    total = jax.ops.segment_sum(x.reshape(-1, x.shape[-1]).astype(jnp.float32), owners, count + 1)[:count]
    return total / jnp.linalg.norm(total, axis=1, keepdims=True)


def vectors(parameters: Parameters, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return the vector of each text, shape (texts, channels), unit rows."""
    compiled = jax.jit(unit_vectors, static_argnames="count")
    on_device = {name: jnp.asarray(values) for name, values in parameters.items()}
    chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    return np.vstack([compiled(on_device, packed(chunk), count=len(chunk)) for chunk in chunks])


def _embedded(parameters: Parameters, rows: Rows) -> Any:
    words = parameters[EMBEDDINGS + "word_embeddings.weight"][rows.tokens]
    positions = parameters[EMBEDDINGS + "position_embeddings.weight"][rows.positions]
    kind = parameters[EMBEDDINGS + "token_type_embeddings.weight"][0]
    return _normalised(parameters, EMBEDDINGS + "LayerNorm", words + positions + kind)


def _layer(parameters: Parameters, name: str, x: Any, is_own: Any) -> Any:
    context = _context(parameters, name + "attention.self.", x, is_own)
    attended = _linear(parameters, name + "attention.output.dense", context)
    hidden = _normalised(parameters, name + "attention.output.LayerNorm", x + attended)
    active = jax.nn.gelu(_linear(parameters, name + "intermediate.dense", hidden), approximate=False)
    output = _linear(parameters, name + "output.dense", active)
    return _normalised(parameters, name + "output.LayerNorm", hidden + output)


def _context(parameters: Parameters, name: str, x: Any, is_own: Any) -> Any:
    query, key, value = (_heads(_linear(parameters, name + part, x)) for part in ("query", "key", "value"))
    scores = (query @ key.swapaxes(2, 3)).astype(jnp.float32) / HEAD_SIZE**0.5
    shares = jax.nn.softmax(jnp.where(is_own, scores, -1e9), axis=-1).astype(x.dtype)
    return (shares @ value).swapaxes(1, 2).reshape(x.shape)


def _heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], -1, HEAD_SIZE).swapaxes(1, 2)


def _linear(parameters: Parameters, name: str, x: Any) -> Any:
    return x @ parameters[name + ".weight"].T + parameters[name + ".bias"]


def _normalised(parameters: Parameters, name: str, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return (centred / deviation).astype(x.dtype) * parameters[name + ".weight"] + parameters[name + ".bias"]
