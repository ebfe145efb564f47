"""Training: the loss, steps of AdamW on all layers, and averages of weights. The embeddings stay as published."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.quantisation.network import Weights
from benchmarks.training.data import Data, tokens_of
from benchmarks.training.network import EMBEDDINGS, Parameters, jax, jnp, unit_vectors, vectors
from benchmarks.training.packing import packed
from benchmarks.training.sampling import Base, Batch

optax: Any = import_module("optax")

TEMPERATURE = 0.05
WEIGHT_DECAY = 0.01
WARM_UP = 0.1
CLOSENESS_SHARE, PASSAGE_SHARE = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """Figures of a step; `loss` is that before the step."""

    number: int
    loss: float
    gradient: float
    seconds: float


def base_vectors(weights: Weights, data: Data) -> Base:
    """Return the vectors of all texts before the training."""
    return Base(*(vectors(weights, tokens_of(part)) for part in (data.queries, data.names, data.texts)))


def trained(
    weights: Weights, data: Data, batches: Iterator[Batch], steps: int, peak: float
) -> tuple[Weights, list[Step]]:
    """Return the weights after these steps, and the figures of each; the learning rate rises to `peak` and falls."""
    own = {name: jnp.asarray(values) for name, values in weights.items() if is_trained(name)}
    kept = {name: jnp.asarray(values) for name, values in weights.items() if not is_trained(name)}
    rates = optax.linear_onecycle_schedule(steps, peak, pct_start=WARM_UP, pct_final=1.0)
    optimiser = optax.adamw(rates, weight_decay=WEIGHT_DECAY, mask=is_matrix)
    state, figures = optimiser.init(own), list[Step]()

    def update(own: Parameters, state: Any, batch: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
        value, gradients = jax.value_and_grad(loss)(own, kept, batch)
        changes, state = optimiser.update(gradients, state, own)
        return optax.apply_updates(own, changes), state, value, optax.tree.norm(gradients)

    compiled = jax.jit(update)
    for number, batch in zip(range(steps), batches, strict=False):
        started = time.perf_counter()
        own, state, value, gradient = compiled(own, state, arrays(data, batch))
        figures.append(step(number, float(value), float(gradient), started))
    return {**weights, **{name: np.asarray(values) for name, values in own.items()}}, figures


def is_trained(name: str) -> bool:
    """Return whether the tensor of this name belongs to a layer."""
    return not name.startswith(EMBEDDINGS)


def arrays(data: Data, batch: Batch) -> dict[str, Any]:
    """Return all that the loss of a batch needs."""
    parts = (data.queries[batch.queries], data.names[batch.tools], data.texts[batch.tools])
    rows = packed([text for part in parts for text in tokens_of(part)])
    return {"rows": rows, "masked": batch.masked, "weights": batch.weights}


def loss(own: Parameters, kept: Parameters, batch: dict[str, Any]) -> Any:
    """Return InfoNCE over the closeness of the product and each passage alone. van den Oord et al., 2018."""
    queries, tools = batch["masked"].shape
    found = unit_vectors({**kept, **own}, batch["rows"], queries + 2 * tools)
    query, names, texts = jnp.split(found, [queries, queries + tools])
    name, text = query @ names.T, query @ texts.T
    close = ((name + text) / 2 + jnp.maximum(name, text)) / 2
    scores = (CLOSENESS_SHARE * close + PASSAGE_SHARE * (name + text)) / TEMPERATURE
    shares = jax.nn.log_softmax(jnp.where(batch["masked"], -1e9, scores), axis=1)
    return -(jnp.diagonal(shares) * batch["weights"]).mean()


def averaged(base: Weights, trained: Weights, share: float) -> Weights:
    """Return the base weights and `share` of the way to the trained ones; KeyError if a name is missing.

    Wortsman et al., Robust fine-tuning of zero-shot models, CVPR 2022.
    """
    return {name: (values + share * (trained[name] - values)).astype(np.float32) for name, values in base.items()}


def mixed(runs: Sequence[Weights]) -> Weights:
    """Return the mean of the weights of several runs; KeyError if a name is missing.

    Wortsman et al., Model soups, ICML 2022.
    """
    return {name: np.stack([own[name] for own in runs]).mean(axis=0) for name in runs[0]}


def is_matrix(own: Parameters) -> dict[str, bool]:
    """Return which tensors decay: neither biases nor normalisations."""
    return {name: values.ndim > 1 for name, values in own.items()}


def step(number: int, value: float, gradient: float, started: float) -> Step:
    """Print and return the figures of a step that started at this `time.perf_counter()`."""
    found = Step(number, value, gradient, round(time.perf_counter() - started, 3))
    print(f"  step {number}: loss {value:.4f}, {found.seconds:.1f} s", flush=True)
    return found
