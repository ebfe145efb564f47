"""Scales of weights and activations in 8 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.quantisation.network import Array, Range

# The share of the outliers that moves from the activations into the weights; chosen by cosine to float32.
SMOOTHING = 0.7


def quantised(matrix: Array, axis: int) -> tuple[NDArray[np.int8], Array]:
    """Return the matrix in 8 bits and its scales, of which there is one for each index of the other axis."""
    return _rounded(matrix, np.abs(matrix).max(axis=axis, keepdims=True))


def quantised_factors(matrix: Array) -> tuple[NDArray[np.int8], Array]:
    """Return a factor of a product in 8 bits, with an even number of rows, and a scale for each column.

    Processors without VNNI add the products of two adjacent rows in 16 bits, and 255 * 128 fits: so two adjacent
    values of a column are at most 128 together.
    """
    values = np.abs(matrix)
    return _rounded(matrix, (values[0::2] + values[1::2]).max(axis=0, keepdims=True))


def _rounded(matrix: Array, largest: Array) -> tuple[NDArray[np.int8], Array]:
    scales = (np.maximum(largest, 1e-12) / 127).astype(np.float32)
    return np.clip(np.rint(matrix / scales), -127, 127).astype(np.int8), scales


def smoothing(activations: Range, matrix: Array) -> Array:
    """Return the factor by which each channel of the input is divided; shape (channels,), geometric mean 1.

    The channel's weights are multiplied by it, so that outliers of a few channels do not take the whole range.
    Xiao et al., SmoothQuant, ICML 2023.
    """
    of_activations = np.maximum(activations.largest, np.float32(1e-5)) ** SMOOTHING
    of_weights = np.maximum(np.abs(matrix).max(axis=1), np.float32(1e-5)) ** (1 - SMOOTHING)
    factors = of_activations / of_weights
    smooth: Array = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
    return smooth
