"""How much a run measures."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Plan(BaseModel):
    """The sizes of a run."""

    model_config = ConfigDict(frozen=True)

    name: str
    sizes: tuple[int, ...]
    """Tools in the index; the corpus is repeated, under other servers, until there are so many."""
    queries: int
    rounds: int
    """Times that each query is asked, for the latency."""
    words: int = 15
    """Words of a query: a longer one would be searched by its clauses as well."""
    groups: int = 100
    """Groups that the servers are dealt into in turn; the filter admits one of them."""


FULL = Plan(name="full", sizes=(10_000, 100_000), queries=250, rounds=2)
QUICK = Plan(name="quick", sizes=(200,), queries=3, rounds=1, groups=4)
