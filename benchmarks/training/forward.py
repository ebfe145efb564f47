"""The network in JAX, for rows that hold one text or several.

An array of owners has the number of the text of each place, and -1 where a row is empty.
Places of the same owner attend to each other; so a text has the same vector in any row.

Parameters have the names and shapes of the published weights. `benchmarks.quantisation.network` is the same network
for one text in numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from benchmarks.quantisation.network import EPSILON, HEAD_SIZE

# JAX is in an environment of its own, where type checkers do not look.
jax: Any = import_module("jax")
jnp: Any = import_module("jax.numpy")

WORDS = "embeddings.word_embeddings.weight"

Parameters = Mapping[str, Any]
"""Arrays of numpy or JAX, by name."""


def embedded(parameters: Parameters, tokens: Any) -> Any:
    """Return the input of the first layer, shape (texts, tokens, channels)."""
    positions = parameters["embeddings.position_embeddings.weight"][: tokens.shape[1]]
    kind = parameters["embeddings.token_type_embeddings.weight"][0]
    return _normalised(parameters, "embeddings.LayerNorm", parameters[WORDS][tokens] + positions + kind)


def through(parameters: Parameters, numbers: Iterable[int], x: Any, owners: Any) -> Any:
    """Return the output of these layers, shape (rows, places, channels); `owners` has shape (rows, places)."""
    is_own = owners[:, None, :, None] == owners[:, None, None, :]
    for number in numbers:
        x = _layer(parameters, f"encoder.layer.{number}.", x, is_own)
    return x


def unit_vectors(x: Any, owners: Any, count: int) -> Any:
    """Return the mean over the places of each owner below `count` at unit length, shape (count, channels)."""
    flat = jnp.where(owners < 0, count, owners).reshape(-1)
    total = jax.ops.segment_sum(x.reshape(-1, x.shape[-1]), flat, count + 1)[:count]
    return total / jnp.linalg.norm(total, axis=1, keepdims=True)


def _layer(parameters: Parameters, name: str, x: Any, is_own: Any) -> Any:
    context = _context(parameters, name + "attention.self.", x, is_own)
    attended = _linear(parameters, name + "attention.output.dense", context)
    hidden = _normalised(parameters, name + "attention.output.LayerNorm", x + attended)
    active = jax.nn.gelu(_linear(parameters, name + "intermediate.dense", hidden), approximate=False)
    output = _linear(parameters, name + "output.dense", active)
    return _normalised(parameters, name + "output.LayerNorm", hidden + output)


def _context(parameters: Parameters, name: str, x: Any, is_own: Any) -> Any:
    query, key, value = (_heads(_linear(parameters, name + part, x)) for part in ("query", "key", "value"))
    scores = query @ key.swapaxes(2, 3) / HEAD_SIZE**0.5
    shares = jax.nn.softmax(jnp.where(is_own, scores, -1e9), axis=-1)
    return (shares @ value).swapaxes(1, 2).reshape(x.shape)


def _heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], -1, HEAD_SIZE).swapaxes(1, 2)


def _linear(parameters: Parameters, name: str, x: Any) -> Any:
    return x @ parameters[name + ".weight"].T + parameters[name + ".bias"]


def _normalised(parameters: Parameters, name: str, x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return centred / deviation * parameters[name + ".weight"] + parameters[name + ".bias"]
