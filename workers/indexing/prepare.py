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

from shared.catalog import Encoding, Prepared, ToolDefinition
from shared.text.tokens import Counter, count_all
from shared.text.vectors import tool_vectors
from workers.dependencies import Dependencies

# A living holder needs seconds, and a dead one's claim expires sooner. Beyond this, working twice is the lesser evil.
WAIT_AT_MOST_S = 60.0

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25

Definitions = Mapping[str, ToolDefinition]
"""Definitions by digest."""

Write = Callable[[Mapping[str, Prepared]], None]
"""Put what belongs to these digests into the index, where other looks find it."""


def prepare(
    wanted: Definitions, declared_name: str, deps: Dependencies, write: Write, wait_at_most_s: float = WAIT_AT_MOST_S
) -> None:
    """Call `write` with what belongs to these digests, part by part as it becomes known, until all were written.

    What the index holds is not made again, and what another look is making is waited for.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    rest = dict(wanted)
    deadline = time.monotonic() + wait_at_most_s
    pause_s = _FIRST_PAUSE_S
    while rest:
        known = _known(rest, deps)
        with claimed(rest.keys() - known, deps) as ours:
            ready = known | _made_once(_part(rest, ours), declared_name, deps)
            if ready:
                write(ready)
        rest = _part(rest, rest.keys() - ready)
        if rest and time.monotonic() > deadline:
            write(_made(rest, declared_name, deps))
            return
        if rest:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@contextmanager
def claimed(digests: Collection[str], deps: Dependencies) -> Generator[frozenset[str]]:
    """Hold, until the block ends, what nobody else is making of these for the same model: for another it is other work.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    by_claim = {f"{deps.embedder.model}:{each}": each for each in digests}
    with deps.intents.claim(by_claim) as held:
        yield frozenset(by_claim[claim] for claim in held)


def _known(definitions: Definitions, deps: Dependencies) -> dict[str, Prepared]:
    found = deps.index.prepared(definitions.keys())
    return {each: _counted(prepared, definitions[each], deps) for each, prepared in found.items()}


def _counted(prepared: Prepared, definition: ToolDefinition, deps: Dependencies) -> Prepared:
    """Count again what could not be counted then: the reason, as a missing vocabulary, may be gone."""
    missing: dict[Encoding, Counter] = {
        encoding: count for encoding, count in deps.counters.items() if encoding not in prepared.token_counts
    }
    if not missing:
        return prepared
    (counts,) = count_all([definition.wire], missing)
    return replace(prepared, token_counts={**prepared.token_counts, **counts})


def _made_once(claimed: Definitions, declared_name: str, deps: Dependencies) -> dict[str, Prepared]:
    """Make what nobody else can be making, except what another look had written just before it was claimed."""
    known = _known(claimed, deps)
    return known | _made(_part(claimed, claimed.keys() - known), declared_name, deps)


def _made(definitions: Definitions, declared_name: str, deps: Dependencies) -> dict[str, Prepared]:
    if not definitions:
        return {}
    with deps.computing:
        with deps.metrics.stage("count"):
            counts = count_all((tool.wire for tool in definitions.values()), deps.counters)
        with deps.metrics.stage("embed"):
            vectors = tool_vectors(list(definitions.values()), declared_name, deps.embedder)
    made = (Prepared(its_counts, its_vectors) for its_counts, its_vectors in zip(counts, vectors, strict=True))
    return dict(zip(definitions, made, strict=True))


def _part(definitions: Definitions, digests: Collection[str]) -> dict[str, ToolDefinition]:
    return {each: tool for each, tool in definitions.items() if each in digests}
