"""The network in JAX, for batches of texts of different lengths.

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


def through(parameters: Parameters, numbers: Iterable[int], x: Any, is_token: Any) -> Any:
    """Return the output of these layers, shape (texts, tokens, channels); `is_token` has shape (texts, tokens)."""
    for number in numbers:
        x = _layer(parameters, f"encoder.layer.{number}.", x, is_token)
    return x


def unit_vectors(x: Any, is_token: Any) -> Any:
    """Return the mean over the tokens of each text at unit length, shape (texts, channels)."""
    total = jnp.where(is_token[:, :, None], x, 0).sum(axis=1)
    return total / jnp.linalg.norm(total, axis=1, keepdims=True)


def _layer(parameters: Parameters, name: str, x: Any, is_token: Any) -> Any:
    context = _context(parameters, name + "attention.self.", x, is_token)
    attended = _linear(parameters, name + "attention.output.dense", context)
    hidden = _normalised(parameters, name + "attention.output.LayerNorm", x + attended)
    active = jax.nn.gelu(_linear(parameters, name + "intermediate.dense", hidden), approximate=False)
    output = _linear(parameters, name + "output.dense", active)
    return _normalised(parameters, name + "output.LayerNorm", hidden + output)


def _context(parameters: Parameters, name: str, x: Any, is_token: Any) -> Any:
    query, key, value = (_heads(_linear(parameters, name + part, x)) for part in ("query", "key", "value"))
    scores = query @ key.swapaxes(2, 3) / HEAD_SIZE**0.5
    shares = jax.nn.softmax(jnp.where(is_token[:, None, None, :], scores, -1e9), axis=-1)
    return (shares @ value).swapaxes(1, 2).reshape(x.shape)


def _heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], -1, HEAD_SIZE).swapaxes(1, 2)


def _linear(parameters: Parameters, name: str, x: Any) -> Any:
    return x @ parameters[name + ".weight"].T + parameters[name + ".bias"]


def _normalised(parameters: Parameters, name: str, x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return centred / deviation * parameters[name + ".weight"] + parameters[name + ".bias"]
