"""Plan and results of the benchmark, as the JSON keeps them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from benchmarks.throughput.machine import Conditions, Machine


class Plan(BaseModel):
    """Sizes of a run. `idle_s` covers one complete read of each process, `busy_s` is the time of each other case."""

    model_config = ConfigDict(frozen=True)

    name: str
    servers: int
    idle_s: float
    busy_s: float
    reconciliations_per_s: float
    connections: int


FULL = Plan(name="full", servers=10_000, idle_s=300.0, busy_s=60.0, reconciliations_per_s=38.0, connections=1_000)
QUICK = Plan(name="quick", servers=50, idle_s=3.0, busy_s=3.0, reconciliations_per_s=5.0, connections=5)


class Reading(BaseModel):
    """A case without connections. `core_percent` of one core and `redis_kib_per_s` are means of one process."""

    model_config = ConfigDict(frozen=True)

    case: str
    processes: int
    seconds: float
    core_percent: float
    redis_kib_per_s: float
    memory_mib: float


class Connections(BaseModel):
    """Open connections of one process to one server; memory and processor time of that process only."""

    model_config = ConfigDict(frozen=True)

    protocol: str
    connections: int
    opened_s: float
    memory_kib_each: float
    files_each: float
    core_percent: float


class Results(BaseModel):
    """All that a run measured."""

    model_config = ConfigDict(frozen=True)

    made_at: str
    plan: Plan
    machine: Machine
    conditions: tuple[Conditions, ...]
    readings: tuple[Reading, ...]
    connections: tuple[Connections, ...]
