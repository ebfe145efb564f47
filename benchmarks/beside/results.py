"""Plan and results of the benchmark, as the JSON keeps them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from benchmarks.throughput.machine import Conditions, Machine
from benchmarks.throughput.results import Spread


class Plan(BaseModel):
    """Sizes of a run: tools, rounds, and requests of each kind in a round."""

    model_config = ConfigDict(frozen=True)

    name: str
    tools: tuple[int, ...]
    rounds: int
    requests: int
    seed: int = 20260704


FULL = Plan(name="full", tools=(1_000, 10_000), rounds=40, requests=20)
QUICK = Plan(name="quick", tools=(1_000,), rounds=2, requests=2)


class Cost(BaseModel):
    """A request of one build: processor time of the service by round, and the median duration by round, in ms."""

    model_config = ConfigDict(frozen=True)

    processor: Spread
    p50: Spread


class Compared(BaseModel):
    """A request of both builds; `ratio` is the part of the processor time that is left, by round."""

    model_config = ConfigDict(frozen=True)

    request: str
    before: Cost
    now: Cost
    ratio: Spread


class Size(BaseModel):
    """The requests to catalogues of so many tools."""

    model_config = ConfigDict(frozen=True)

    tools: int
    compared: tuple[Compared, ...]


class Results(BaseModel):
    """All that a run measured; `before` and `now` are commits."""

    model_config = ConfigDict(frozen=True)

    made_at: str
    plan: Plan
    machine: Machine
    conditions: tuple[Conditions, ...]
    before: str
    now: str
    sizes: tuple[Size, ...]
