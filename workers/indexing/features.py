"""Token counts and vectors of tools: remembered, read from the index, or computed by one run at a time.

Replicas of a server declare the same tools, often at the same moment. A run computes the digests that neither the
index has nor another run is computing, and waits for the others. It hands over its own results before it waits, and
claims nothing while it waits, so two runs never wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from shared.catalog import Encoding, ToolDefinition, ToolFeatures
from shared.index.tools import ToolIndex
from shared.text.embedding import Embedder
from shared.text.forms import count_forms
from shared.text.tokens import Counter
from shared.text.vectors import tool_vectors
from workers.indexing.fenced import FencedIndex
from workers.indexing.remembered import RememberedFeatures
from workers.intents.store import IntentStore
from workers.metrics import WorkerMetrics

# A running holder needs seconds, and the claim of a dead one expires sooner. After this, the work is done twice.
WAIT_AT_MOST_S = 60.0

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25

Definitions = Mapping[str, ToolDefinition]
"""Definitions by digest."""


@dataclass(frozen=True, slots=True)
class FeatureDependencies:
    """The neighbours that compute features for one index version.

    `computing` is held while counting and embedding, so that listings get the processor in between.
    """

    index: ToolIndex | FencedIndex
    embedder: Embedder
    counters: Mapping[Encoding, Counter]
    intents: IntentStore
    computing: AbstractContextManager[object]
    metrics: WorkerMetrics
    remembered: RememberedFeatures = field(default_factory=RememberedFeatures)


def compute_features(
    wanted: Definitions, declared_name: str, deps: FeatureDependencies, wait_at_most_s: float = WAIT_AT_MOST_S
) -> Generator[dict[str, ToolFeatures]]:
    """Yield the features of these digests in parts, as they become available.

    The caller writes each part to the index before it asks for the next, where other runs find it. Claims are held
    until then.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    remaining = dict(wanted)
    deadline = time.monotonic() + wait_at_most_s
    pause_s = _FIRST_PAUSE_S
    while remaining:
        remembered = deps.remembered.of(deps.embedder.model, remaining.keys())
        with claim_digests(remaining.keys() - remembered.keys(), deps) as claimed:
            # after the claim: another run may have written some just before it
            stored = _stored_features(remaining, remembered, deps)
            ready = stored | _compute(_subset(remaining, claimed - stored.keys()), declared_name, deps)
            if ready:
                yield ready
        remaining = _subset(remaining, remaining.keys() - ready)
        if remaining and time.monotonic() > deadline:
            yield _compute(remaining, declared_name, deps)
            return
        if remaining:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@contextmanager
def claim_digests(digests: Collection[str], deps: FeatureDependencies) -> Generator[frozenset[str]]:
    """Claim, until the block ends, the digests without a claim for the same model; yield those.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    by_claim = {f"{deps.embedder.model}:{digest}": digest for digest in digests}
    with deps.intents.claim(by_claim) as held:
        yield frozenset(by_claim[claim] for claim in held)


def _stored_features(
    definitions: Definitions, remembered: dict[str, ToolFeatures], deps: FeatureDependencies
) -> dict[str, ToolFeatures]:
    unread = definitions.keys() - remembered.keys()
    stored = remembered | (deps.index.features_by_digest(unread) if unread else {})
    return {digest: _recounted(features, definitions[digest], deps.counters) for digest, features in stored.items()}


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
        with deps.metrics.stage("count"):
            counts = [count_forms(tool, deps.counters) for tool in definitions.values()]
        with deps.metrics.stage("embed"):
            vectors = tool_vectors(list(definitions.values()), declared_name, deps.embedder)
    zipped = zip(definitions.items(), counts, vectors, strict=True)
    computed = {digest: ToolFeatures(*counted, found, tool.wire) for (digest, tool), counted, found in zipped}
    deps.remembered.keep(deps.embedder.model, computed)
    return computed


def _subset(definitions: Definitions, digests: Collection[str]) -> dict[str, ToolDefinition]:
    return {digest: tool for digest, tool in definitions.items() if digest in digests}
