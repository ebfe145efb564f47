"""The features that a worker computed last, so that replicas need not read them from the index.

Features that were read are not remembered: after an audit found a wrong count, it would be written again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping

from shared.catalog import SMALL_DEFINITION, ToolFeatures

# Some 9 MiB: a tool has two vectors, its terms and its definition.
CAPACITY = 1024


class RememberedFeatures:
    """The features of the digests used last, by model; long definitions are left out. Safe in several threads."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._features: OrderedDict[tuple[str, str], ToolFeatures] = OrderedDict()
        self._changing = threading.Lock()

    def of(self, model: str, digests: Collection[str]) -> dict[str, ToolFeatures]:
        """Return the features of those digests that are remembered."""
        with self._changing:
            found = {digest: self._features[model, digest] for digest in digests if (model, digest) in self._features}
            for digest in found:
                self._features.move_to_end((model, digest))
        return found

    def keep(self, model: str, features: Mapping[str, ToolFeatures]) -> None:
        """Remember these features, and forget the ones used longest ago."""
        with self._changing:
            for digest, found in features.items():
                if len(found.wire) <= SMALL_DEFINITION:
                    self._features[model, digest] = found
            while len(self._features) > self._capacity:
                self._features.popitem(last=False)
