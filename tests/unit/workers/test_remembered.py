from __future__ import annotations

import numpy as np

from shared.catalog import SMALL_DEFINITION, SparseVector, ToolFeatures, ToolVectors
from workers.indexing.remembered import RememberedFeatures


def features(wire: str = "{}") -> ToolFeatures:
    vector = np.ones(2, dtype=np.float32)
    return ToolFeatures({}, {}, ToolVectors(vector, vector, SparseVector((), ())), wire)


def test_features_are_remembered_for_their_model_only() -> None:
    remembered, kept = RememberedFeatures(), features()

    remembered.keep("m", {"d": kept})

    assert remembered.of("m", ["d", "e"]) == {"d": kept}
    assert remembered.of("n", ["d"]) == {}


def test_the_features_used_longest_ago_are_forgotten() -> None:
    remembered = RememberedFeatures(capacity=2)
    remembered.keep("m", {"a": features(), "b": features()})

    remembered.of("m", ["a"])
    remembered.keep("m", {"c": features()})

    assert remembered.of("m", "abc").keys() == {"a", "c"}


def test_long_definitions_are_not_remembered() -> None:
    remembered = RememberedFeatures()

    remembered.keep("m", {"long": features("x" * (SMALL_DEFINITION + 1))})

    assert remembered.of("m", ["long"]) == {}
