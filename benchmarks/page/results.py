"""Plan and results of the benchmark, as the JSON keeps them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from benchmarks.throughput.machine import Conditions, Machine

LIMIT_MS = 300.0
"""Processor time of the service for a page, at most."""


class Plan(BaseModel):
    """Sizes of a run: servers, tools of each, days of history, and loads of each page."""

    model_config = ConfigDict(frozen=True)

    name: str
    servers: tuple[int, ...]
    tools_per_server: int
    days: int
    callers: int
    loads: int
    seed: int = 7


FULL = Plan(name="full", servers=(11, 500, 5_000), tools_per_server=5, days=30, callers=20, loads=20)
QUICK = Plan(name="quick", servers=(11, 30), tools_per_server=2, days=2, callers=2, loads=2)


class Loaded(BaseModel):
    """A page: its first load, and the mean of the loads after it, in processor time of the service."""

    model_config = ConfigDict(frozen=True)

    page: str
    path: str
    first_ms: float
    mean_ms: float
    slowest_ms: float
    """The longest time until the browser's last byte."""
    size_kib: float


class Size(BaseModel):
    """The pages with so many servers."""

    model_config = ConfigDict(frozen=True)

    servers: int
    pages: tuple[Loaded, ...]


class Results(BaseModel):
    """All that a run measured."""

    model_config = ConfigDict(frozen=True)

    made_at: str
    plan: Plan
    machine: Machine
    conditions: tuple[Conditions, ...]
    sizes: tuple[Size, ...]
