"""Facts of one search for its log line, its metrics and the history; no caller sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from query.response.timings import Timings
from query.savings.savings import Baseline, saved_by_server


@dataclass(frozen=True, slots=True)
class SearchStats:
    """The timings of a search, its baseline, and the tokens of each tool as shown, by server and name."""

    timings: Timings
    baseline: Baseline
    shown_tokens: Mapping[tuple[str, str], int]

    def saved_by_server(self, tokens_saved: int) -> dict[str, int]:
        """Return `tokens_saved` divided among servers and OTHERS."""
        shown: Counter[str] = Counter()
        for (server, _), tokens in self.shown_tokens.items():
            shown[server] += tokens
        return saved_by_server(self.baseline, shown, tokens_saved)
