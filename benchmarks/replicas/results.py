"""The results of a run, kept as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from benchmarks.retrieval.results import Score
from benchmarks.search.results import Milliseconds
from benchmarks.throughput.machine import Conditions, Machine


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class AnswerTokens(_Kept):
    """The tokens of the answers of one detail level, and the definitions in them."""

    median: float
    p95: float
    median_definitions: float
    """Definitions of an answer, each counted once."""


class CatalogueResult(_Kept):
    """The answers from one catalogue."""

    name: str
    servers: int
    tools: int
    scores: dict[str, Score]
    """Recall by set of queries."""
    same_rankings: int
    """Queries whose first ten tools are those of the corpus alone, in the same order."""
    repeated: int
    """Answers with two equal definitions, over all queries and detail levels."""
    tokens: dict[str, AnswerTokens]
    find_tool: Milliseconds


class Results(_Kept):
    """Everything a run found; the first catalogue is the corpus alone."""

    made_at: str
    machine: Machine
    conditions: Conditions
    queries: int
    replicas: tuple[int, ...]
    replicated: str
    replicated_tools: int
    catalogues: tuple[CatalogueResult, ...]
