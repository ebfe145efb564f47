"""Scales of weights and activations in 8 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.quantisation.network import Array, Range

# The share of the outliers that moves from the activations into the weights; chosen by cosine to float32.
SMOOTHING = 0.7
# Processors without VNNI add two products of bytes in 16 bits: 2 * 255 * 64 fits, and 2 * 255 * 127 does not.
LARGEST_FACTOR = 64


def quantised(matrix: Array, axis: int, largest: int) -> tuple[NDArray[np.int8], Array]:
    """Return the matrix as integers up to `largest`, and its scales: one for each index of the other axis."""
    scales = np.maximum(np.abs(matrix).max(axis=axis, keepdims=True), np.float32(1e-12)) / np.float32(largest)
    return np.clip(np.rint(matrix / scales), -largest, largest).astype(np.int8), scales


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
