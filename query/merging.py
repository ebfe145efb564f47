"""Several rankings as one: each step of a task gets its turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest


def round_robin(rankings: Sequence[Iterable[str]], limit: int) -> list[str]:
    """Return the first of each ranking, then the second of each, and so on: at most `limit`, none twice."""
    turns = zip_longest(*rankings)
    in_turn = (item for turn in turns for item in turn if item is not None)
    return list(islice(dict.fromkeys(in_turn), limit))
