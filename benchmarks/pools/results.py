"""Results of a run as stored in JSON. The report is rendered from these values only."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from benchmarks.pools.plan import Plan, Pool
from benchmarks.throughput.machine import Conditions, Machine


class Frozen(BaseModel):
    """A value that is written once."""

    model_config = ConfigDict(frozen=True)


class Arrangement(Frozen):
    """One arrangement under load. Times in seconds; `quick` are looks at unchanged servers, from request to end."""

    pool: Pool
    quick_looks: int
    quick_p50_s: float
    quick_p95_s: float
    quick_highest_s: float
    large_s: float
    all_s: float


class Waiting(Frozen):
    """Looks that only wait: their process's seconds of processor time per second, memory, threads and open files."""

    looks: int
    processor: float
    kib_a_look: float
    threads: int
    files: int


class Batch(Frozen):
    """Texts embedded in batches of one size. `lowest_cosine` compares with separately embedded texts."""

    size: int
    sorted_by_length: bool
    texts_per_s: float
    lowest_cosine: float


class Crowd(Frozen):
    """Looks at servers of the largest lists, `turns` of them held at a time; resident MiB before and at the most.

    `arenas` is MALLOC_ARENA_MAX, None: as the system has it.
    """

    looks: int
    turns: int
    arenas: int | None
    mib_before: float
    mib_peak: float


class Results(Frozen):
    """All of a run."""

    made_at: str
    plan: Plan
    machine: Machine
    conditions: tuple[Conditions, ...]
    arrangements: tuple[Arrangement, ...]
    waiting: Waiting
    crowds: tuple[Crowd, ...]
    batches: tuple[Batch, ...]
