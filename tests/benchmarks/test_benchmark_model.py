"""The training of the model: its data and batches here, and the training itself in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tokenizers import Tokenizer

from benchmarks.harness import ROOT, kept
from benchmarks.model.data import MISSING, PLACES, ROWS, Data, filled, packed, read_data, rows, tokens_of, write_data
from benchmarks.model.evaluation import CHOOSING, GUARDS, OWN, change, mean
from benchmarks.model.network import (
    INPUTS,
    Array,
    Range,
    quantised,
    quantised_factors,
    random_texts,
    ranges,
    read_weights,
    smoothing,
    vector,
    write_weights,
)
from benchmarks.model.sampling import Base, Sampler, closeness, masked, nearest
from benchmarks.model.texts import as_data, read_requests
from shared.text.embedding import BundledModel, bundled_model
from tests.support.tiny_model import LAYERS, POSITIONS, WORDS, tiny_data, tiny_weights
from tests.support.tiny_retrieval import write_lines
from toolscale.demo.servers import PythonEnvironment

BATCH = 16
LOCK = ROOT / "benchmarks" / "model" / "requirements.lock"


def unit(count: int, seed: int) -> Any:
    """Return random unit rows of four channels."""
    values = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def random_base(data: Data) -> Base:
    return Base(unit(len(data.queries), 0), unit(len(data.names), 1), unit(len(data.texts), 2))


def sampler(seed: int = 0, weights: Mapping[str, float] | None = None) -> Sampler:
    data = tiny_data()
    return Sampler(data, random_base(data), BATCH, seed, weights or {})


# Data


def test_a_long_text_is_cut_and_keeps_its_closing_token() -> None:
    found = rows([[101, 7, 8, 9, 102], [101, 102]], 4)

    assert found.tolist() == [[101, 7, 8, 102], [101, 102, 0, 0]]
    assert tokens_of(found) == [[101, 7, 8, 102], [101, 102]]


def test_data_and_weights_are_read_as_they_were_written(tmp_path: Path) -> None:
    weights = tiny_weights()
    write_data(tiny_data(), tmp_path / "data.npz")
    write_weights(weights, tmp_path / "weights.safetensors")

    data, again = read_data(tmp_path / "data.npz"), read_weights(tmp_path / "weights.safetensors")

    assert data.relevant.tolist() == tiny_data().relevant.tolist()
    assert data.styles.tolist() == tiny_data().styles.tolist()
    assert list(again) == list(weights)
    assert all(again[name].tobytes() == values.tobytes() for name, values in weights.items())


def test_requests_and_tools_become_the_tokens_of_the_product(tmp_path: Path) -> None:
    tool = {"server": "weather", "name": "getForecast", "description": "Tomorrow.", "inputSchema": {"type": "object"}}
    corpus = write_lines(tmp_path / "corpus.jsonl", [{**tool, "name": "getAlerts"}, tool])
    request = {"query": "will it rain", "relevant": [{"server": "weather", "name": "getForecast"}], "style": "task"}

    found = as_data([request], corpus)

    assert found.relevant.tolist() == [[1]]
    assert found.servers.tolist() == [0, 0]
    tokenizer = Tokenizer.from_file(str(bundled_model() / "tokenizer.json"))
    tokenizer.no_padding()
    assert tokens_of(found.names)[1] == tokenizer.encode("weather: get Forecast").ids
    assert tokens_of(found.texts)[1] == tokenizer.encode("get Forecast: Tomorrow.").ids


def test_each_request_is_whole_and_none_repeats() -> None:
    requests = read_requests()

    assert all(request["query"].strip() and request["relevant"] and request["style"] for request in requests)
    assert len({request["query"] for request in requests}) > 0.99 * len(requests)


# Batches


def test_the_same_seed_draws_the_same_batches() -> None:
    first, again, other = ([batch.tools.tolist() for batch in sampler(seed).epoch()] for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_request_is_drawn_once_in_an_epoch_with_one_of_its_tools_as_positive() -> None:
    batches = list(sampler().epoch())

    drawn = np.concatenate([batch.queries for batch in batches])
    assert len(drawn) == len(set(drawn.tolist())) == len(tiny_data().queries) // BATCH * BATCH
    assert all(np.array_equal(batch.tools[:BATCH], tiny_data().relevant[batch.queries, 0]) for batch in batches)


def test_half_of_the_hard_negatives_are_siblings_and_none_is_a_positive() -> None:
    data = tiny_data()

    for batch in sampler().epoch():
        positives, hard = batch.tools[:BATCH], batch.tools[BATCH:]
        assert np.array_equal(data.servers[hard[::2]], data.servers[positives[::2]])
        assert np.all(hard != positives)


def test_styles_count_by_their_weights() -> None:
    (batch, *_) = sampler(weights={"hard": 3.0}).epoch()

    hard = tiny_data().styles[batch.queries] == "hard"
    assert batch.weights[hard].mean() == pytest.approx(3 * batch.weights[~hard].mean())
    assert batch.weights.mean() == pytest.approx(1.0)


@given(st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True), min_size=2, max_size=6), st.data())
def test_positives_and_their_near_duplicates_are_no_negatives(wanted: list[list[int]], drawn: st.DataObject) -> None:
    texts = np.repeat(unit(6, 3), 2, axis=0)  # each tool has an equal neighbour
    columns = [own[0] for own in wanted] + drawn.draw(st.lists(st.integers(0, 11), max_size=6))

    found = masked(filled(wanted, 3, MISSING), np.array(columns, dtype=np.int32), texts)

    for row, own in enumerate(wanted):
        for column, tool in enumerate(columns):
            is_close = any(float(texts[tool] @ texts[positive]) > 0.9 for positive in own)
            assert found[row, column] == (column != row and (tool in own or is_close))


def test_the_nearest_tools_are_those_of_the_highest_closeness_without_the_positives() -> None:
    data = tiny_data()
    base = random_base(data)

    found = nearest(data, base)

    scores = closeness(base.queries @ base.names.T, base.queries @ base.texts.T)
    scores[np.arange(len(scores)), data.relevant[:, 0]] = -np.inf
    assert all(set(own) == set((-row).argsort()[: len(own)]) for own, row in zip(found.tolist(), scores, strict=True))


@given(st.lists(st.integers(1, PLACES), min_size=1, max_size=24))
def test_each_text_is_in_one_row_in_its_order(lengths: list[int]) -> None:
    texts = [list(range(1, length + 1)) for length in lengths]

    tokens, positions, owners = packed(texts)

    assert len(owners) % ROWS == 0
    for number, text in enumerate(texts):
        assert len(set(np.argwhere(owners == number)[:, 0])) == 1
        assert tokens[owners == number].tolist() == text
        assert positions[owners == number].tolist() == list(range(len(text)))
    assert not tokens[owners < 0].any()


# The file in 8 bits


def test_ranges_are_those_of_every_input_over_all_texts() -> None:
    texts = random_texts(WORDS, POSITIONS)[:8]

    first, both = ranges(tiny_weights(), texts[:4]), ranges(tiny_weights(), texts)

    assert {(number, name) for number in range(LAYERS) for name in INPUTS} <= both.keys()
    assert all(
        np.all(both[key].high >= found.high) and np.all(both[key].low <= found.low) for key, found in first.items()
    )


def test_quantised_weights_differ_by_at_most_half_a_step() -> None:
    matrix = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)

    values, scales = quantised(matrix, axis=0)

    assert scales.shape == (1, 8)
    assert np.all(np.abs(values * scales - matrix) <= scales / 2 + 1e-6)


@given(arrays(np.float32, (6, 3), elements=st.floats(-4, 4, width=32)))
def test_no_processor_saturates_the_sum_of_two_products(matrix: Array) -> None:
    values, scales = quantised_factors(matrix)

    pairs = np.abs(values.astype(int)).reshape(3, 2, 3).sum(axis=1)
    assert 255 * pairs.max() <= np.iinfo(np.int16).max
    assert np.all(np.abs(values * scales - matrix) <= scales / 2 + 1e-6)


def test_smoothing_divides_a_channel_of_outliers_by_more_than_others() -> None:
    matrix = np.ones((4, 8), dtype=np.float32)
    high = np.array([1, 1, 1, 100], dtype=np.float32)

    factors = smoothing(Range(-high, high), matrix)

    assert factors[3] > 20 * factors[0]
    assert np.exp(np.log(factors).mean()) == pytest.approx(1.0, abs=1e-5)


# The choice


def test_the_mean_of_a_choice_is_over_its_sets_alone() -> None:
    def scored(at_5: float, at_10: float) -> dict[str, float]:
        return {"recall_at_5": at_5, "recall_at_10": at_10}

    scores = {name: scored(60.0, 80.0) for name in CHOOSING} | {name: scored(0.0, 0.0) for name in GUARDS}

    assert mean(scores) == 70.0
    assert np.isnan(mean({OWN.name: scored(1.0, 1.0)}))


def test_a_change_is_the_mean_of_paired_differences_with_its_interval() -> None:
    before, after = np.array([0.0, 100.0, 50.0] * 30), np.array([100.0, 100.0, 50.0] * 30)

    found = change("own_dev", 5, before, after)

    assert (found["before"], found["after"], found["difference"]) == (50.0, 83.3, 33.3)
    assert found["low"] < 33.3 < found["high"]
    same = change("own_dev", 5, after, after)
    assert (same["low"], same["high"]) == (0.0, 0.0)


def test_the_chosen_model_has_the_highest_mean() -> None:
    figures = kept("model")

    means = {name: mean(scores) for name, scores in figures["models"].items()}
    assert max(means, key=lambda name: means[name]) == figures["after"]


# The training


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.index
def test_a_training_lowers_the_loss_and_writes_a_model_that_the_product_runs(tmp_path: Path) -> None:
    environment = PythonEnvironment("training", LOCK)
    environment.install(tmp_path)
    python = environment.programs(tmp_path) / "python"
    write_data(tiny_data(), tmp_path / "data.npz")
    (tmp_path / "start").mkdir()
    write_weights(tiny_weights(), tmp_path / "start" / "trained.safetensors")

    def train(run: str, *options: str) -> dict[str, Any]:
        files = [str(tmp_path / name) for name in ("data.npz", run)]
        command = [str(python), "-m", "benchmarks.model.training", *files, *options]
        subprocess.run(command, cwd=ROOT, check=True, timeout=600)
        log: dict[str, Any] = json.loads((tmp_path / run / "run.json").read_text(encoding="utf-8"))
        return log

    short = ("--start", str(tmp_path / "start"), "--batch", str(BATCH), "--rate", "1e-3")
    first, again = (train(run, *short, "--epochs", "5") for run in ("first", "again"))
    mixed = train("mixed", "--mix", str(tmp_path / "first"), str(tmp_path / "again"))

    losses = [step["loss"] for step in first["steps"]]
    assert 0 < np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert first["model"]["sha256"] == again["model"]["sha256"] == mixed["model"]["sha256"]
    assert first["model"]["cosine_to_float32"]["lowest"] > 0.99
    base, trained = tiny_weights(), read_weights(tmp_path / "first" / "trained.safetensors")
    changed = {name for name in base if trained[name].tobytes() != base[name].tobytes()}
    # A key's bias moves all scores of a query equally: it has no gradient, only noise.
    keys = {f"encoder.layer.{number}.attention.self.key.bias" for number in range(LAYERS)}
    assert changed | keys == {name for name in base if name.startswith("encoder.layer.")}
    model = BundledModel(tmp_path / "mixed")._session  # pyright: ignore[reportPrivateUsage]
    for text in tokens_of(tiny_data().texts):
        found = model.run(None, {"input_ids": np.array([text])})[0][0]
        assert found @ vector(trained, text) > 0.99
