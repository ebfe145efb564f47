"""The program that writes the bundled model, in its own environment; ONNX Runtime runs what it wrote."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.quantisation.network import random_texts, read_weights, vector
from tests.support.tiny_weights import POSITIONS, WORDS, write_tiny_weights
from toolscale.demo.servers import PythonEnvironment

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "benchmarks" / "quantisation" / "requirements.lock"

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.index]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the weights and the model of a tiny network."""
    directory = tmp_path_factory.mktemp("quantisation")
    write_tiny_weights(directory / "weights.safetensors")
    environment = PythonEnvironment("onnx", LOCK)
    environment.install(directory)
    python = environment.programs(directory) / "python"
    files = [str(directory / name) for name in ("weights.safetensors", "model.onnx")]
    subprocess.run([python, "-m", "benchmarks.quantisation", *files], cwd=ROOT, check=True, timeout=240)
    return directory


def test_the_written_model_returns_the_vectors_of_its_weights(written: Path) -> None:
    weights = read_weights(written / "weights.safetensors")
    texts = random_texts(WORDS, POSITIONS)[:20]

    model = _opened(written)

    cosines = [float(_rows(model, [text])[0] @ vector(weights, text)) for text in texts]
    assert min(cosines) > 0.99


def test_a_vector_of_the_written_model_does_not_depend_on_its_batch(written: Path) -> None:
    rng = np.random.default_rng(1)
    texts: list[list[int]] = rng.integers(0, WORDS, (9, 12)).tolist()

    model = _opened(written)

    together, alone = _rows(model, texts), np.vstack([_rows(model, [text]) for text in texts])
    assert np.abs(together - alone).max() < 1e-5


def _opened(written: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(written / "model.onnx"), providers=["CPUExecutionProvider"])


def _rows(model: Any, tokens: list[list[int]]) -> Any:
    return model.run(None, {"input_ids": np.array(tokens)})[0]
