"""How much a run measures."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Plan(BaseModel):
    """The sizes and repetitions of a run; each repetition of a composition has new processes and a new directory."""

    model_config = ConfigDict(frozen=True)

    name: str
    seed: int = 20260704
    repetitions: int
    servers: int
    """Servers that are ingested through the whole path."""
    tools_per_server: int
    late_servers: int
    """Servers that come up one after the other, to see how long each takes to be findable."""
    event_servers: int
    """Servers that one event each is sent for."""
    storm_events: int
    """Events sent for one and the same server."""
    catalogue_sizes: tuple[int, ...]
    """Tools in the index while find_tool is asked."""
    queries: int
    count_sizes: tuple[int, ...]
    """Tools whose tokens are counted in one go."""


FULL = Plan(
    name="full",
    repetitions=3,
    servers=20,
    tools_per_server=50,
    late_servers=8,
    event_servers=40,
    storm_events=200,
    catalogue_sizes=(1_000, 10_000),
    queries=150,
    count_sizes=(200, 10_000),
)
QUICK = Plan(
    name="quick",
    repetitions=1,
    servers=2,
    tools_per_server=5,
    late_servers=1,
    event_servers=2,
    storm_events=5,
    catalogue_sizes=(50,),
    queries=5,
    count_sizes=(20, 50),
)
