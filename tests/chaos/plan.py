"""How much of every fault a run of chaos has, in an order of chance."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

Fault = Literal["kill", "redis", "qdrant", "flush", "disk", "index", "freeze", "roll_out"]

NAMES: dict[Fault, str] = {
    "kill": "process group of a worker killed (SIGKILL) under load",
    "redis": "Redis killed (SIGKILL) and started again",
    "qdrant": "Qdrant server killed (SIGKILL) and started again",
    "flush": "Redis wiped (FLUSHALL)",
    "disk": "Redis killed and its directory deleted",
    "index": "workers killed and the index deleted",
    "freeze": "worker frozen for longer than its leases last",
    "roll_out": "worker asked to end (SIGTERM) under load",
}


FIXED_SEED = 20


@dataclass(frozen=True)
class Plan:
    """`faults` counts each fault; times are in seconds. `sick` is the share of servers that hang, drip or fail."""

    servers: int
    faults: dict[Fault, int]
    resync_s: float
    bound_s: float
    sick: float = 0.3

    def scaled(self, share: float) -> Plan:
        """Return a plan with this share of the faults, each kind once at least."""
        return replace(self, faults={fault: max(1, round(times * share)) for fault, times in self.faults.items()})

    def without(self, fault: Fault) -> Plan:
        """Return a plan without this fault."""
        return replace(self, faults={each: times for each, times in self.faults.items() if each != fault})

    def in_order(self, rng: random.Random) -> list[Fault]:
        """Return all faults in an order of chance."""
        faults: list[Fault] = [fault for fault, times in self.faults.items() for _ in range(times)]
        rng.shuffle(faults)
        return faults


# On a Qdrant server of the run's own, which several workers share.
ON_A_SERVER = Plan(
    servers=100,
    faults={"kill": 60, "redis": 6, "qdrant": 8, "flush": 1, "disk": 1, "index": 1, "freeze": 5, "roll_out": 5},
    resync_s=30.0,
    bound_s=45.0,
)
LONG = Plan(
    servers=100,
    faults={"kill": 200, "redis": 20, "flush": 3, "disk": 1, "index": 2, "freeze": 5, "roll_out": 10},
    resync_s=30.0,
    bound_s=45.0,
)
SHORT = Plan(
    servers=12,
    faults={"kill": 2, "redis": 1, "qdrant": 1, "flush": 1, "disk": 1, "index": 1, "freeze": 1, "roll_out": 1},
    resync_s=5.0,
    bound_s=30.0,
)
