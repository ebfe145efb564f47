"""The results of a run of `python -m benchmarks.capture`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from benchmarks.retrieval.data import ToolKey
from benchmarks.throughput.results import Frozen


class Places(Frozen):
    """Numbers of requests: with a tool of the attacker first, and among the first three; with a right tool
    first, among the first five, and anywhere.
    """

    attacker_first: int = 0
    attacker_in_three: int = 0
    right_first: int = 0
    right_in_five: int = 0
    right_found: int = 0

    @classmethod
    def of(cls, found: Sequence[ToolKey], right: Collection[str], honest: Collection[str]) -> Places:
        """Return the places in one response, given the right tools as `server:tool` and the honest servers."""
        is_attack = [server not in honest for server, _ in found]
        is_right = [f"{server}:{tool}" in right for server, tool in found]
        return cls(
            attacker_first=any(is_attack[:1]),
            attacker_in_three=any(is_attack[:3]),
            right_first=any(is_right[:1]),
            right_in_five=any(is_right[:5]),
            right_found=any(is_right),
        )

    def __add__(self, other: Places) -> Places:
        """Return the sums of both."""
        return Places(**{name: value + getattr(other, name) for name, value in self})


class Strategy(Frozen):
    """The places under a strategy, before and after the operator's file names the honest servers."""

    name: str
    before: Places
    after: Places


class Results(Frozen):
    """A run: `unattacked` are the honest servers by themselves."""

    made_at: str
    requests: int
    servers: int
    tools: int
    unattacked: Strategy
    attacked: list[Strategy]
    newcomers: Strategy
