from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.quantisation.network import (
    INPUTS,
    Array,
    Range,
    Weights,
    layers,
    random_texts,
    ranges,
    read_weights,
    vector,
)
from benchmarks.quantisation.scales import quantised, quantised_factors, smoothing
from tests.support.tiny_weights import CHANNELS, INNER, LAYERS, POSITIONS, WORDS, write_tiny_weights


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    write_tiny_weights(tmp_path / "model.safetensors")
    return read_weights(tmp_path / "model.safetensors")


def test_weights_are_read_with_their_shapes(weights: Weights) -> None:
    assert layers(weights) == LAYERS
    assert weights["encoder.layer.1.intermediate.dense.weight"].shape == (INNER, CHANNELS)
    assert weights["embeddings.LayerNorm.weight"].mean() == pytest.approx(1.0, abs=0.1)


def test_random_texts_are_the_same_each_time_and_fit_the_model() -> None:
    texts = random_texts(WORDS, POSITIONS)

    assert texts == random_texts(WORDS, POSITIONS)
    assert max(map(len, texts)) <= POSITIONS
    assert max(max(text) for text in texts) < WORDS


def test_ranges_are_those_of_every_input_over_all_texts(weights: Weights) -> None:
    texts = random_texts(WORDS, POSITIONS)[:8]

    first, both = ranges(weights, texts[:4]), ranges(weights, texts)

    assert {(number, name) for number in range(LAYERS) for name in INPUTS} <= both.keys()
    assert all(
        np.all(both[key].high >= found.high) and np.all(both[key].low <= found.low) for key, found in first.items()
    )


def test_a_text_has_a_vector_of_unit_length(weights: Weights) -> None:
    assert np.linalg.norm(vector(weights, [1, 2, 3])) == pytest.approx(1.0)


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
