"""Token counts and vectors of tools: read from the index, or computed by one run of this process at a time.

Replicas of a server declare the same tools, often at the same moment. A run computes the digests that neither the
index has nor another run of the process is computing, and waits for the others. It hands over its own results before
it waits, and holds no digest while it waits, so two runs never wait for each other. Two processes may both compute a
digest: the results are equal.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from shared.catalog import Encoding, ToolDefinition, ToolFeatures
from shared.index.tools import ToolIndex
from shared.text.embedding import Embedder, tool_vectors
from shared.text.tokens import Counter, count_forms
from workers.monitoring.metrics import stage

Definitions = Mapping[str, ToolDefinition]
"""Definitions by digest."""


class FeatureLocks:
    """The digests whose features runs of this process are computing, by model; each is held by one run at a time."""

    def __init__(self) -> None:
        self._held = set[tuple[str, str]]()
        self._changed = threading.Condition()

    @contextmanager
    def held(self, model: str, digests: Collection[str]) -> Generator[frozenset[str]]:
        """Hold the free ones of these digests until the block ends, and yield them without waiting for the others."""
        with self._changed:
            free = frozenset(digest for digest in digests if (model, digest) not in self._held)
            self._held |= {(model, digest) for digest in free}
        try:
            yield free
        finally:
            with self._changed:
                self._held -= {(model, digest) for digest in free}
                self._changed.notify_all()

    def wait_for_any(self, model: str, digests: Collection[str]) -> None:
        """Return when one of these digests is free."""
        with self._changed:
            self._changed.wait_for(lambda: any((model, digest) not in self._held for digest in digests))


@dataclass(frozen=True, slots=True)
class FeatureDependencies:
    """The neighbours that compute features for one index version.

    `computing` is held while counting and embedding, so that listings get the processor in between.
    """

    index: ToolIndex
    embedder: Embedder
    counters: Mapping[Encoding, Counter]
    computing: AbstractContextManager[object]
    locks: FeatureLocks = field(default_factory=FeatureLocks)


def compute_features(
    wanted: Definitions, declared_name: str, deps: FeatureDependencies
) -> Generator[dict[str, ToolFeatures]]:
    """Yield the features of these digests in parts, as they become available.

    The caller writes each part to the index before it asks for the next, where other runs find it. Its digests are
    held until then.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    model, remaining = deps.embedder.model, dict(wanted)
    while remaining:
        with deps.locks.held(model, remaining) as held:
            # read while they are held: another run may have written some just before
            found = deps.index.features_by_digest(remaining.keys())
            stored = {digest: _recounted(each, remaining[digest], deps.counters) for digest, each in found.items()}
            ready = stored | _compute(_subset(remaining, held - stored.keys()), declared_name, deps)
            if ready:
                yield ready
        remaining = _subset(remaining, remaining.keys() - ready)
        if remaining:
            deps.locks.wait_for_any(model, remaining)


def _recounted(
    features: ToolFeatures, definition: ToolDefinition, counters: Mapping[Encoding, Counter]
) -> ToolFeatures:
    """Count again if the keys have another order here, or if a count failed before."""
    if features.wire == definition.wire and features.token_counts.keys() >= counters.keys():
        return features
    return ToolFeatures(*count_forms(definition, counters), features.vectors, definition.wire)


def _compute(definitions: Definitions, declared_name: str, deps: FeatureDependencies) -> dict[str, ToolFeatures]:
    if not definitions:
        return {}
    with deps.computing:
        with stage("count"):
            counts = [count_forms(tool, deps.counters) for tool in definitions.values()]
        with stage("embed"):
            vectors = tool_vectors(list(definitions.values()), declared_name, deps.embedder)
    zipped = zip(definitions.items(), counts, vectors, strict=True)
    return {digest: ToolFeatures(*counted, found, tool.wire) for (digest, tool), counted, found in zipped}


def _subset(definitions: Definitions, digests: Collection[str]) -> dict[str, ToolDefinition]:
    return {digest: tool for digest, tool in definitions.items() if digest in digests}
