"""How much a run measures."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Plan(BaseModel):
    """The sizes and repetitions of a run."""

    model_config = ConfigDict(frozen=True)

    name: str
    seed: int = 20260704
    repetitions: int
    catalogue_sizes: tuple[int, ...]
    """Tools in the index."""
    tools_per_server: int
    calls: int
    """Calls of each tool, one after the other, in each repetition."""
    work_ms: float
    """Minimum duration of a called tool."""
    clients: tuple[int, ...]
    """Clients that ask at once, each for the next thing as soon as it has its answer."""
    questions: int
    """Questions of all of them, in each repetition; all are asked twice, so that they fit into what is remembered."""


FULL = Plan(
    name="full",
    repetitions=3,
    catalogue_sizes=(1_000, 10_000),
    tools_per_server=50,
    calls=40,
    work_ms=5.0,
    clients=(16, 50),
    questions=400,
)
QUICK = Plan(
    name="quick",
    repetitions=1,
    catalogue_sizes=(50,),
    tools_per_server=10,
    calls=2,
    work_ms=1.0,
    clients=(3,),
    questions=6,
)
