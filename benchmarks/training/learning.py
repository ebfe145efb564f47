"""Training: the loss, and steps of AdamW on the upper layers alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.quantisation.network import Weights, layers
from benchmarks.training.forward import Parameters, jax, jnp, through, unit_vectors
from benchmarks.training.packing import packed
from benchmarks.training.sampling import Batch, Sampler
from benchmarks.training.schedule import is_trained, rates
from benchmarks.training.states import Prepared

optax: Any = import_module("optax")

TEMPERATURE = 0.05
WEIGHT_DECAY = 0.01
CLOSENESS_SHARE, PASSAGE_SHARE = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """Figures of a step; `loss` is that before the step."""

    number: int
    loss: float
    gradient: float
    rate: float
    seconds: float


def trained(
    weights: Weights, frozen: int, texts: Prepared, batches: Iterator[Batch], steps: int, peak: float
) -> tuple[Weights, list[Step]]:
    """Return the weights after these steps, and the figures of each; the frozen tensors are those of `weights`."""
    own = {name: jnp.asarray(values) for name, values in weights.items() if is_trained(name, frozen)}
    table = rates(steps, peak)
    optimiser = optax.adamw(jnp.asarray(table).__getitem__, weight_decay=WEIGHT_DECAY, mask=_is_matrix)
    state, update = optimiser.init(own), _update(optimiser, frozen, layers(weights))
    figures: list[Step] = []
    for number, batch in zip(range(steps), batches, strict=False):
        started = time.perf_counter()
        own, state, loss, gradient = update(own, state, arrays(texts, batch))
        figures.append(_step(number, float(loss), float(gradient), float(table[number]), started))
    return {**weights, **{name: np.asarray(values) for name, values in own.items()}}, figures


def epochs(sampler: Sampler, count: int) -> Iterator[Batch]:
    """Yield the batches of this many epochs."""
    for _ in range(count):
        yield from sampler.epoch()


def arrays(texts: Prepared, batch: Batch) -> dict[str, Any]:
    """Return all that the loss of a batch needs, as arrays of numpy."""
    parts = [(texts.queries, batch.queries), (texts.names, batch.tools), (texts.texts, batch.tools)]
    states, owners = packed([(part.states[chosen], part.is_token[chosen]) for part, chosen in parts])
    return {"states": states, "owners": owners, "masked": batch.masked, "weights": batch.weights}


def loss(own: Parameters, batch: dict[str, Any], numbers: range) -> Any:
    """Return InfoNCE over the closeness of the product and each passage alone. van den Oord et al., 2018."""
    queries, names, texts = _vectors(own, batch, numbers)
    name, text = queries @ names.T, queries @ texts.T
    close = ((name + text) / 2 + jnp.maximum(name, text)) / 2
    scores = (CLOSENESS_SHARE * close + PASSAGE_SHARE * (name + text)) / TEMPERATURE
    shares = jax.nn.log_softmax(jnp.where(batch["masked"], -1e9, scores), axis=1)
    return -(jnp.diagonal(shares) * batch["weights"]).mean()


def _update(optimiser: Any, frozen: int, count: int) -> Callable[..., Any]:
    def update(own: Parameters, state: Any, batch: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
        value, gradients = jax.value_and_grad(loss)(own, batch, range(frozen, count))
        changes, state = optimiser.update(gradients, state, own)
        return optax.apply_updates(own, changes), state, value, optax.tree.norm(gradients)

    compiled: Callable[..., Any] = jax.jit(update)
    return compiled


def _vectors(own: Parameters, batch: dict[str, Any], numbers: range) -> Any:
    """Return the vectors of the queries, and of the names and texts of the tools."""
    queries, tools = batch["masked"].shape
    output = through(own, numbers, batch["states"].astype(jnp.float32), batch["owners"])
    found = unit_vectors(output, batch["owners"], queries + 2 * tools)
    return jnp.split(found, [queries, queries + tools])


def _is_matrix(own: Parameters) -> dict[str, bool]:
    """Return which tensors decay: neither biases nor normalisations."""
    return {name: values.ndim > 1 for name, values in own.items()}


def _step(number: int, value: float, gradient: float, rate: float, started: float) -> Step:
    found = Step(number, value, gradient, rate, round(time.perf_counter() - started, 3))
    print(f"  step {number}: loss {value:.4f}, {found.seconds:.1f} s", flush=True)
    return found
