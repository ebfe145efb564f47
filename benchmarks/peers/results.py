"""Results of a comparison, stored as JSON and rendered as Markdown."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from benchmarks.retrieval.results import Score
from benchmarks.throughput.machine import Conditions, Machine


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class Compared(_Kept):
    """A system, its version, and what it was given."""

    name: str
    version: str
    given: str


class SetRecall(_Kept):
    """A set of queries: recall of each system by name, in percent; `failed` has the reason of a system without one."""

    name: str
    queries: int
    tools: int
    scores: dict[str, Score]
    failed: dict[str, str]


class Latency(_Kept):
    """A system: milliseconds an answer takes, whole and without the query's embedding.

    `ready_s` is from the tools to the first answer, without the model's share. `answers` is the number of queries
    answered within the time limit; `failed` is the reason for missing ones.
    """

    system: str
    answers: int = 0
    ready_s: float = 0.0
    memory_mib: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    without_model_p50: float = 0.0
    without_model_p95: float = 0.0
    failed: str = ""


class Part(_Kept):
    """When and where a part of the comparison was made; parts are made apart."""

    made_at: str
    machine: Machine
    conditions: tuple[Conditions, ...]


class RecallPart(Part):
    """Recall of the systems."""

    sets: tuple[SetRecall, ...]


class LatencyPart(Part):
    """How long the systems take among so many tools."""

    tools: int
    systems: tuple[Latency, ...]


class Results(_Kept):
    """Everything that is kept."""

    systems: tuple[Compared, ...]
    recall: RecallPart | None = None
    latency: tuple[LatencyPart, ...] = ()
