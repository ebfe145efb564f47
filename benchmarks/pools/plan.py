"""The arrangements compared, and the size of a run."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Pool(BaseModel):
    """An arrangement: threads for looks, how many of them embed at a time, and whether those have a process apart.

    `embedding` None: as many as there are threads.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    threads: int
    embedding: int | None = None
    own_process: bool = False


class Plan(BaseModel):
    """The sizes of a run."""

    model_config = ConfigDict(frozen=True)

    name: str
    seed: int = 20261121
    pools: tuple[Pool, ...]
    unchanged: int
    """Servers whose looks are timed: they were ingested before and did not change."""
    every_s: float
    """One of them is asked for this often."""
    large: int
    """Servers that are ingested for the first time during the run."""
    tools_of_large: int
    silent: int
    """Servers that take a connection and say nothing."""
    silence_s: float
    """The time after which a look at those is given up."""
    waiting: int
    """Looks that wait for silent servers while the processor time is taken."""
    texts: int
    """Texts that are embedded in batches."""
    rounds: int
    """Times that each batch size has its turn; the fastest counts."""
    crowd: int
    """Looks side by side at servers that offer as much as they may."""


POOLS = (
    Pool(name="8 threads", threads=8),
    Pool(name="64 threads", threads=64),
    Pool(name="64 threads, 2 embed", threads=64, embedding=2),
    Pool(name="64 threads, 1 embeds", threads=64, embedding=1),
    Pool(name="two queues, 64 and 2 threads", threads=64, embedding=2, own_process=True),
)
FULL = Plan(
    name="full",
    pools=POOLS,
    unchanged=60,
    every_s=0.2,
    large=8,
    tools_of_large=60,
    silent=32,
    silence_s=6.0,
    waiting=256,
    texts=120,
    rounds=4,
    crowd=24,
)
QUICK = FULL.model_copy(
    update={
        "name": "quick",
        "unchanged": 2,
        "every_s": 0.05,
        "large": 2,
        "tools_of_large": 3,
        "silent": 2,
        "silence_s": 1.0,
        "waiting": 4,
        "texts": 8,
        "rounds": 1,
        "crowd": 3,
    }
)
