"""Looks at servers one after the other, split into stages: the first at each server, and one that finds no change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.throughput.embedded import index_settings, up
from benchmarks.throughput.fleet import FleetServer, fleet
from benchmarks.throughput.isolation import in_fresh_process
from benchmarks.throughput.plan import Plan
from benchmarks.throughput.results import Looks, Spread, StageShare
from benchmarks.throughput.stages import STAGES, Stage, Stages, timed_dependencies
from shared.events import ServerChanged, ServerEvent, ServerRef
from shared.intents.intents import open_intents
from workers.dependencies import Dependencies, open_dependencies
from workers.ingest import reconcile


@dataclass(frozen=True, slots=True)
class Round:
    """One look at each server: seconds in all and by stage, and what passed through the stages."""

    seconds: float
    by_stage: dict[Stage, float]
    items: dict[Stage, int]


def measure_looks(plan: Plan) -> tuple[Looks, Looks]:
    """Return the looks at new servers and those at unchanged ones."""
    with fleet(plan.servers, plan.tools_per_server, plan.seed) as servers:
        rounds = [in_fresh_process(_new_then_unchanged, servers) for _ in range(plan.repetitions)]
    new, unchanged = zip(*rounds, strict=True)
    return _looks(new, plan), _looks(unchanged, plan)


def _new_then_unchanged(directory: Path, servers: Sequence[FleetServer]) -> tuple[Round, Round]:
    settings = index_settings(directory)
    with closing(open_intents(settings)) as intents, closing(open_dependencies(settings, intents)) as deps:
        deps.embedder.query("ready")  # the model is loaded once per process, not per server
        new = _look_at_each(deps, [up(server) for server in servers])
        refs = (ServerRef(server_id=server.server_id) for server in servers)
        return new, _look_at_each(deps, [ServerChanged(data=ref) for ref in refs])


def _look_at_each(deps: Dependencies, events: Sequence[ServerEvent]) -> Round:
    stages = Stages()
    active = deps.active()
    # a reconciliation would open its own index, untimed
    pinned = replace(deps, index=active.index, embedder=active.embedder, versions=None)
    timed = timed_dependencies(pinned, stages)
    started = time.perf_counter()
    for event in events:
        timed.intents.record(event, due_in_s=60)
        reconcile(event.data.server_id, timed)
    seconds = time.perf_counter() - started
    return Round(seconds, stages.seconds, stages.items)


def _looks(rounds: Sequence[Round], plan: Plan) -> Looks:
    return Looks(
        servers=plan.servers,
        tools=plan.servers * plan.tools_per_server,
        repetitions=len(rounds),
        ms_per_server=Spread.of([repetition.seconds * 1000 / plan.servers for repetition in rounds]),
        stages=tuple(_stages(rounds, plan.servers)),
    )


def _stages(rounds: Sequence[Round], servers: int) -> Iterator[StageShare]:
    for name in STAGES:
        passed = sum(repetition.items[name] for repetition in rounds)
        yield _stage(name, rounds, [repetition.by_stage[name] for repetition in rounds], passed, servers)
    rest = [repetition.seconds - sum(repetition.by_stage.values()) for repetition in rounds]
    yield _stage("rest", rounds, rest, 0, servers)


def _stage(name: str, rounds: Sequence[Round], seconds: Sequence[float], items: int, servers: int) -> StageShare:
    shares = [100 * part / repetition.seconds for part, repetition in zip(seconds, rounds, strict=True)]
    return StageShare(
        name=name,
        ms_per_server=Spread.of([part * 1000 / servers for part in seconds]),
        share_percent=Spread.of(shares),
        items=items,
    )
