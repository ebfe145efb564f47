"""Counts and vectors for tools: found in the index, or made by one look at a time.

Replicas of a server declare the same tools, often at the same moment. What one of them has counted and embedded is in
the index for the others, so a look makes only what is missing there and what no other look is making; for the rest
it waits. It writes what it made before it waits, and holds nothing while it waits: no two looks wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from shared.catalog import Encoding, ToolDefinition, ToolFeatures
from shared.text.tokens import Counter, count_all
from shared.text.vectors import tool_vectors
from workers.dependencies import Dependencies

# A living holder needs seconds, and a dead one's claim expires sooner. Beyond this, working twice is the lesser evil.
WAIT_AT_MOST_S = 60.0

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25

Definitions = Mapping[str, ToolDefinition]
"""Definitions by digest."""

Write = Callable[[Mapping[str, ToolFeatures]], None]
"""Put what belongs to these digests into the index, where other looks find it."""


def compute_features(
    wanted: Definitions, declared_name: str, deps: Dependencies, write: Write, wait_at_most_s: float = WAIT_AT_MOST_S
) -> None:
    """Call `write` with what belongs to these digests, part by part as it becomes known, until all were written.

    What the index holds is not made again, and what another look is making is waited for.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    remaining = dict(wanted)
    deadline = time.monotonic() + wait_at_most_s
    pause_s = _FIRST_PAUSE_S
    while remaining:
        stored = _stored_features(remaining, deps)
        with claim_digests(remaining.keys() - stored, deps) as claimed:
            ready = stored | _compute_claimed(_subset(remaining, claimed), declared_name, deps)
            if ready:
                write(ready)
        remaining = _subset(remaining, remaining.keys() - ready)
        if remaining and time.monotonic() > deadline:
            write(_compute(remaining, declared_name, deps))
            return
        if remaining:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@contextmanager
def claim_digests(digests: Collection[str], deps: Dependencies) -> Generator[frozenset[str]]:
    """Hold, until the block ends, what nobody else is making of these for the same model: for another it is other work.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    by_claim = {f"{deps.embedder.model}:{digest}": digest for digest in digests}
    with deps.intents.claim(by_claim) as held:
        yield frozenset(by_claim[claim] for claim in held)


def _stored_features(definitions: Definitions, deps: Dependencies) -> dict[str, ToolFeatures]:
    stored = deps.index.features_by_digest(definitions.keys())
    return {each: _with_missing_counts(features, definitions[each], deps) for each, features in stored.items()}


def _with_missing_counts(features: ToolFeatures, definition: ToolDefinition, deps: Dependencies) -> ToolFeatures:
    """Count again what could not be counted then: the reason, as a missing vocabulary, may be gone."""
    missing: dict[Encoding, Counter] = {
        encoding: count for encoding, count in deps.counters.items() if encoding not in features.token_counts
    }
    if not missing:
        return features
    (counts,) = count_all([definition.wire], missing)
    return replace(features, token_counts={**features.token_counts, **counts})


def _compute_claimed(claimed: Definitions, declared_name: str, deps: Dependencies) -> dict[str, ToolFeatures]:
    """Make what nobody else can be making, except what another look had written just before it was claimed."""
    stored = _stored_features(claimed, deps)
    return stored | _compute(_subset(claimed, claimed.keys() - stored), declared_name, deps)


def _compute(definitions: Definitions, declared_name: str, deps: Dependencies) -> dict[str, ToolFeatures]:
    if not definitions:
        return {}
    with deps.embedding_slots:
        with deps.metrics.stage("count"):
            counts = count_all((tool.wire for tool in definitions.values()), deps.counters)
        with deps.metrics.stage("embed"):
            vectors = tool_vectors(list(definitions.values()), declared_name, deps.embedder)
    computed = (ToolFeatures(token_counts, embedding) for token_counts, embedding in zip(counts, vectors, strict=True))
    return dict(zip(definitions, computed, strict=True))


def _subset(definitions: Definitions, digests: Collection[str]) -> dict[str, ToolDefinition]:
    return {each: tool for each, tool in definitions.items() if each in digests}
