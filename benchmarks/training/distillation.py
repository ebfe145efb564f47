"""Distillation: a network of fewer layers learns to return the vectors of a larger one.

It learns on texts that are made of pieces of the data, a new one at each place of each step, so that it learns the
function of the larger network and not its vectors of a few texts.
Beyer et al., Knowledge distillation: a good teacher is patient and consistent, CVPR 2022.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from benchmarks.quantisation.network import CLS, FIRST_WORD, SEP, WORDS, Weights
from benchmarks.training.learning import Step, is_matrix, is_trained, step
from benchmarks.training.network import Parameters, jax, jnp, unit_vectors
from benchmarks.training.packing import Rows

optax: Any = import_module("optax")

LAYER = "encoder.layer."
# Tokens of the texts of a step, by turns. Most texts are short.
TURNS = (32, 64, 32, 64, 128)
TOKENS_OF_A_STEP = 131_072
WEIGHT_DECAY = 0.01
WARM_UP = 0.05
LARGEST_GRADIENT = 1.0
LOGGED = 50
# The share of texts that join parts of pieces, and that of texts with foreign words.
JOINED, FOREIGN = 0.4, 0.25
MOST_FOREIGN = 0.3
# The share of texts that are requests.
REQUESTS = 0.25
# Its learning rate is 1, since each step multiplies the changes by its own.
OPTIMISER = optax.chain(
    optax.clip_by_global_norm(LARGEST_GRADIENT), optax.adamw(1.0, weight_decay=WEIGHT_DECAY, mask=is_matrix)
)


class Pieces(NamedTuple):
    """Tokens of texts, one behind the other and without those of the beginning and the end; arrays on the device."""

    tokens: Any
    starts: Any
    """Where each text starts, shape (texts,)."""
    lengths: Any
    """Shape (texts,); none is 0."""
    requests: int
    """So many of the first texts are requests."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps, the highest learning rate, and the seed of the texts."""

    steps: int
    peak: float
    seed: int = 0
    batch_tokens: int = TOKENS_OF_A_STEP


def shallower(weights: Weights, chosen: Sequence[int]) -> Weights:
    """Return the weights of a network with the chosen layers, in this order, and all that is no layer."""
    found = {name: values for name, values in weights.items() if not name.startswith(LAYER)}
    for number, layer in enumerate(chosen):
        prefix = f"{LAYER}{layer}."
        own = {name.removeprefix(prefix): values for name, values in weights.items() if name.startswith(prefix)}
        found |= {f"{LAYER}{number}.{name}": values for name, values in own.items()}
    return found


def pieces(requests: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> Pieces:
    """Return these tokens of texts without the first and the last of each; empty texts are left out."""
    inner = [[text[1:-1] for text in texts if len(text) > 2] for texts in (requests, others)]
    lengths = np.array([len(text) for texts in inner for text in texts], dtype=np.int32)
    tokens = np.concatenate([np.asarray(text, dtype=np.int32) for texts in inner for text in texts])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32)
    return Pieces(jnp.asarray(tokens), jnp.asarray(starts), jnp.asarray(lengths), len(inner[0]))


def drawn(key: Any, own: Pieces, shape: tuple[int, int], words: int) -> Rows:
    """Return a text in each row: a piece, or the end of a piece and a part of the texts behind another.

    Some have foreign words among theirs. `words` is the number of words of the network.
    """
    of_parts, of_words = jax.random.split(key)
    inner, lengths = _parts(of_parts, own, shape[0], shape[1] - 2)
    return _enclosed(_with_foreign(of_words, inner, words), lengths, words)


def _parts(key: Any, own: Pieces, count: int, places: int) -> tuple[Any, Any]:
    """Return tokens, shape (count, places), and the length of each row."""
    keys = jax.random.split(key, 5)
    first, second = _chosen(keys[0], own, count), _chosen(keys[1], own, count)
    is_joined = jax.random.uniform(keys[2], (count,)) < JOINED
    skipped = (jax.random.uniform(keys[3], (count,)) * own.lengths[first] * is_joined).astype(jnp.int32)
    rest = own.lengths[first] - skipped
    wanted = jax.random.randint(keys[4], (count,), 2, places + 1)
    lengths = jnp.minimum(jnp.where(is_joined, wanted, rest), places)
    place = jnp.arange(places)[None, :]
    of_first = (own.starts[first] + skipped)[:, None] + place
    of_second = (own.starts[second] - rest)[:, None] + place
    at = jnp.where(place < rest[:, None], of_first, of_second)
    return own.tokens[jnp.clip(at, 0, len(own.tokens) - 1)], lengths


def _with_foreign(key: Any, inner: Any, words: int) -> Any:
    """Return the rows with random words in place of up to MOST_FOREIGN of their own, in FOREIGN of them."""
    keys = jax.random.split(key, 4)
    rates = jax.random.uniform(keys[0], (len(inner), 1), maxval=MOST_FOREIGN)
    rates = jnp.where(jax.random.uniform(keys[1], rates.shape) < FOREIGN, rates, 0)
    foreign = jax.random.randint(keys[2], inner.shape, min(FIRST_WORD, words // 2), words)
    return jnp.where(jax.random.uniform(keys[3], inner.shape) < rates, foreign, inner)


def _chosen(key: Any, own: Pieces, count: int) -> Any:
    """Return the numbers of random texts, shape (count,)."""
    of_kind, of_requests, of_others = jax.random.split(key, 3)
    requests = jax.random.randint(of_requests, (count,), 0, own.requests)
    others = jax.random.randint(of_others, (count,), own.requests, len(own.starts))
    return jnp.where(jax.random.uniform(of_kind, (count,)) < REQUESTS, requests, others)


def _enclosed(inner: Any, length: Any, words: int) -> Rows:
    """Return the first `length` tokens of each row between those of the beginning and the end."""
    count, places = inner.shape[0], inner.shape[1] + 2
    place = jnp.broadcast_to(jnp.arange(places), (count, places))
    end = length[:, None] + 1
    tokens = jnp.pad(inner, ((0, 0), (1, 1)))
    tokens = jnp.where(place == 0, CLS % words, jnp.where(place == end, SEP % words, tokens))
    owners = jnp.where(place <= end, jnp.arange(count)[:, None], -1)
    return Rows(tokens, place, owners)


def distilled(student: Weights, teacher: Weights, own: Pieces, schedule: Schedule) -> tuple[Weights, list[Step]]:
    """Return the student's weights after these steps, and the figures of every 50th; all layers learn.

    The seconds of a figure are those since the one before.
    """
    learnt = {name: jnp.asarray(values) for name, values in student.items() if is_trained(name)}
    fixed = {name: jnp.asarray(values) for name, values in student.items() if not is_trained(name)}
    constant = (fixed, {name: jnp.asarray(values) for name, values in teacher.items()}, own)
    rates = optax.linear_onecycle_schedule(schedule.steps, schedule.peak, pct_start=WARM_UP, pct_final=1.0)
    keys = jax.random.split(jax.random.key(schedule.seed), schedule.steps)
    state, figures, started = OPTIMISER.init(learnt), list[Step](), time.perf_counter()
    for number in range(schedule.steps):
        places = TURNS[number % len(TURNS)]
        shape = (max(1, schedule.batch_tokens // places), places)
        learnt, state, value, gradient = _update(learnt, state, constant, keys[number], float(rates(number)), shape)
        if number % LOGGED == 0 or number == schedule.steps - 1:
            figures.append(step(number, float(value), float(gradient), started))
            started = time.perf_counter()
    return {**student, **{name: np.asarray(values) for name, values in learnt.items()}}, figures


@partial(jax.jit, static_argnames="shape", donate_argnums=(0, 1))
def _update(
    learnt: Parameters, state: Any, constant: Any, key: Any, rate: float, shape: tuple[int, int]
) -> tuple[Any, Any, Any, Any]:
    """Return the layers after a step at this learning rate, the optimiser's state, the loss, and its gradient."""
    fixed, teacher, own = constant
    rows = drawn(key, own, shape, len(fixed[WORDS]))
    wanted = unit_vectors(_halved(teacher), rows, shape[0])
    value, gradients = jax.value_and_grad(_distance)(learnt, fixed, rows, wanted)
    changes, state = OPTIMISER.update(gradients, state, learnt)
    changes = {name: rate * change for name, change in changes.items()}
    return optax.apply_updates(learnt, changes), state, value, optax.tree.norm(gradients)


def _distance(learnt: Parameters, fixed: Parameters, rows: Rows, wanted: Any) -> Any:
    """Return 1 - cosine to the wanted vectors, the mean over the texts."""
    found = unit_vectors(_halved({**fixed, **learnt}), rows, len(wanted))
    return 1 - (found * wanted).sum(axis=1).mean()


def _halved(parameters: Parameters) -> Parameters:
    """Return the parameters in bfloat16, which an accelerator multiplies faster; normalisations stay in float32."""
    return {name: values.astype(jnp.bfloat16) for name, values in parameters.items()}
