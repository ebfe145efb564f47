"""The recall as README and docs/retrieval.md show it, rendered from the kept results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.retrieval.results import Results, SetResult
from benchmarks.retrieval.sets import PEER, SETS

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "retrieval.md")

# `<!-- table: recall -->` holds all sets, `<!-- table: recall of A; B -->` the sets A and B.
_TABLE = re.compile(r"(<!-- table: recall(?: of ([^>]*))? -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(document: str, results: Results) -> str:
    """Return the document with its tables rendered from the results; KeyError for an unknown set."""
    return _TABLE.sub(lambda found: found[1] + _table(results, found[2]) + found[3], document)


def _table(results: Results, names: str | None) -> str:
    by_name = {each.name: each for each in results.sets}
    sets = [by_name[name] for name in names.split("; ")] if names else results.sets
    return "".join(f"{line}\n" for line in _recall(sets))


def _recall(sets: Sequence[SetResult]) -> Iterator[str]:
    rivals = list(sets[0].rivals)
    columns = ["recall at 5, %", "queries", "tools", "Toolscale", *rivals, PEER]
    yield f"| {' | '.join(columns)} |"
    yield "|---|" + "---:|" * (len(columns) - 1)
    for each in sets:
        rows = [each.name, str(each.queries), f"{each.tools:,}", _ours(each)]
        yield f"| {' | '.join([*rows, *(f'{each.rivals[rival].recall_at_5:.1f}' for rival in rivals), _peer(each)])} |"


def _ours(found: SetResult) -> str:
    low, high = found.toolscale.interval_at_5
    return f"**{found.toolscale.recall_at_5:.1f}** ({low:.0f} to {high:.0f})"


def _peer(found: SetResult) -> str:
    published = next(each.peer for each in SETS if each.name == found.name)
    return f"{published[0]:g}" if published else ""
