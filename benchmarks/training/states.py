"""Outputs of the frozen layers, computed once for all texts and kept in 16 bits, with the base vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.quantisation.network import Weights, layers
from benchmarks.training.data import Data, Integers
from benchmarks.training.forward import Parameters, embedded, jax, jnp, through, unit_vectors
from benchmarks.training.sampling import Base, Floats

Halves = NDArray[np.float16]

ROWS, STEP = 128, 8


@dataclass(frozen=True, slots=True)
class Texts:
    """The same texts three times: which places are tokens, states below the trained layers, and base vectors."""

    is_token: NDArray[np.bool_]
    """Shape (texts, tokens)."""
    states: Halves
    """Shape (texts, tokens, channels); 0 where there is no token."""
    vectors: Floats
    """Shape (texts, channels), unit rows."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """All texts of the data."""

    queries: Texts
    names: Texts
    texts: Texts

    @property
    def base(self) -> Base:
        """Return the base vectors."""
        return Base(self.queries.vectors, self.names.vectors, self.texts.vectors)


def prepared(weights: Weights, data: Data, frozen: int, kept: Path) -> Prepared:
    """Return all texts after `frozen` layers, from the files of the directory `kept` if it has them."""
    kept.mkdir(parents=True, exist_ok=True)
    parts = {"queries": data.queries, "names": data.names, "texts": data.texts}
    return Prepared(**{name: _kept(weights, tokens, frozen, kept / name) for name, tokens in parts.items()})


def _kept(weights: Weights, tokens: Integers, frozen: int, stem: Path) -> Texts:
    files = stem.with_suffix(".states.npy"), stem.with_suffix(".vectors.npy")
    if not all(file.exists() for file in files):
        states, vectors = computed(weights, tokens, frozen)
        np.save(files[0], states)
        np.save(files[1], vectors)
    return Texts(tokens != 0, np.load(files[0], mmap_mode="r"), np.load(files[1]))


def computed(weights: Weights, tokens: Integers, frozen: int) -> tuple[Halves, Floats]:
    """Return the states after `frozen` layers and the vectors after all of them."""
    parameters = {name: jnp.asarray(values) for name, values in weights.items()}
    forward = jax.jit(partial(_forward, frozen=frozen, count=layers(weights)))
    channels = weights["embeddings.LayerNorm.weight"].shape[0]
    states = np.zeros((*tokens.shape, channels), dtype=np.float16)
    vectors = np.empty((len(tokens), channels), dtype=np.float32)
    for chosen, width in _chunks(tokens):
        part = np.zeros((ROWS, width), dtype=np.int32)
        part[: len(chosen)] = tokens[chosen, :width]
        part[len(chosen) :, 0] = 1  # a text without a token has no vector
        lower, unit = forward(parameters, part)
        states[chosen, :width] = np.asarray(lower)[: len(chosen)]
        vectors[chosen] = np.asarray(unit)[: len(chosen)]
    return states, vectors


def _forward(parameters: Parameters, tokens: Any, *, frozen: int, count: int) -> tuple[Any, Any]:
    is_token = tokens != 0
    owners = jnp.where(is_token, jnp.arange(len(tokens))[:, None], -1)
    lower = through(parameters, range(frozen), embedded(parameters, tokens), owners)
    upper = through(parameters, range(frozen, count), lower, owners)
    return jnp.where(is_token[:, :, None], lower, 0).astype(jnp.float16), unit_vectors(upper, owners, len(tokens))


def _chunks(tokens: Integers) -> Iterator[tuple[Integers, int]]:
    """Yield texts of similar lengths, and their width: few widths, as each is compiled."""
    lengths = (tokens != 0).sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), ROWS):
        chosen = order[start : start + ROWS]
        width = -(-int(lengths[chosen[-1]]) // STEP) * STEP
        yield chosen.astype(np.int32), min(width, tokens.shape[1])
