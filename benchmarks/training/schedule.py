"""The learning rate of each step, and averages of weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.quantisation.network import Weights
from benchmarks.training.sampling import Floats

WARM_UP = 0.1


def rates(steps: int, peak: float) -> Floats:
    """Return the learning rate of each step, shape (steps,): linear up to `peak`, then linear down, never 0."""
    warm = max(1, round(WARM_UP * steps))
    up = np.arange(1, warm + 1) / warm
    down = np.arange(steps - warm, 0, -1) / (steps - warm + 1)
    found: Floats = (peak * np.concatenate([up, down])).astype(np.float32)
    return found


def is_trained(name: str, frozen: int) -> bool:
    """Return whether a tensor of this name belongs to a layer above the frozen ones."""
    return name.startswith("encoder.layer.") and int(name.split(".")[2]) >= frozen


def averaged(base: Weights, trained: Weights, share: float) -> Weights:
    """Return the base weights and `share` of the way to the trained ones; KeyError if a name is missing.

    Wortsman et al., Robust fine-tuning of zero-shot models, CVPR 2022.
    """
    return {name: _between(values, trained[name], share) for name, values in base.items()}


def mixed(trained: Sequence[Weights]) -> Weights:
    """Return the mean of the weights of several runs; KeyError if a name is missing.

    Wortsman et al., Model soups, ICML 2022.
    """
    return {name: np.stack([own[name] for own in trained]).mean(axis=0) for name in trained[0]}


def _between(base: Floats, trained: Floats, share: float) -> Floats:
    # Equal tensors stay equal in every bit.
    return (base + np.float32(share) * (trained - base)).astype(np.float32)
