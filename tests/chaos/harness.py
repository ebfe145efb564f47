"""Faults under load, and then the question whether the catalogue equals the truth."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import redis
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from benchmarks.throughput.machine import this_machine
from shared.errors import IntentsUnavailable
from shared.events import ServerEvent
from shared.settings import load_settings
from tests.builders import changed
from tests.chaos.fleet import Fleet, serve
from tests.chaos.report import Outcome
from tests.chaos.services import RedisProcess, Workers
from tests.chaos.truth import differences
from tests.processes import Composition
from workers.emit import emit
from workers.intents.redis_store import RedisIntents, connect
from workers.intents.transitions import Pace
from workers.tasks import send_reconcile

LEASE_S = 2.0
RETRY_AFTER_S = 1.0
APART_S = 5.0


@dataclass(frozen=True)
class Plan:
    """How much of everything; times are in seconds. `sick` is the share of servers that hang, drip or fail."""

    servers: int
    kills: int
    redis_kills: int
    wipes: int
    freezes: int
    roll_outs: int
    resync_s: float
    bound_s: float
    sick: float = 0.3

    def scaled(self, share: float) -> Plan:
        """Return a plan with this share of the faults, each kind once at least."""
        kinds = ("kills", "redis_kills", "wipes", "freezes", "roll_outs")
        return replace(self, **{kind: max(1, round(getattr(self, kind) * share)) for kind in kinds})

    def faults(self, rng: random.Random) -> list[str]:
        """Return all faults in an order of chance."""
        counts = {
            "kill": self.kills,
            "redis": self.redis_kills,
            "wipe": self.wipes,
            "freeze": self.freezes,
            "roll_out": self.roll_outs,
        }
        faults = [name for name, times in counts.items() for _ in range(times)]
        rng.shuffle(faults)
        return faults


LONG = Plan(servers=100, kills=200, redis_kills=20, wipes=3, freezes=5, roll_outs=10, resync_s=30.0, bound_s=45.0)
SHORT = Plan(servers=20, kills=3, redis_kills=1, wipes=1, freezes=1, roll_outs=1, resync_s=8.0, bound_s=30.0)

NAMES = {
    "kill": "worker killed (SIGKILL) under load",
    "redis": "Redis killed (SIGKILL) and started again",
    "wipe": "Redis wiped (FLUSHALL)",
    "freeze": "worker frozen for longer than its leases last",
    "roll_out": "worker asked to end (SIGTERM) under load",
}


class Chaos:
    """A composition of real processes, the fleet it follows, and all that is done to both."""

    def __init__(self, plan: Plan, seed: int, directory: Path, opened: ExitStack) -> None:
        self._plan, self._seed, self._rng = plan, seed, random.Random(seed)
        self._index = directory / "data"
        self._index.mkdir(parents=True)
        self._fleet = Fleet(plan.servers, self._rng)
        opened.enter_context(serve(self._fleet))
        self._redis = RedisProcess(directory / "redis")
        opened.callback(self._redis.kill)
        self._composition = Composition(self._redis.url, self._index, self._settings())
        pace = Pace(RETRY_AFTER_S, 10.0)
        self._intents = opened.enter_context(closing(RedisIntents(connect(self._redis.url), pace)))
        self._producer = opened.enter_context(Celery("producer", broker=self._redis.url))
        self._producer.conf.update(task_default_queue="toolscale", task_publish_retry=False)
        self._qdrant_url = load_settings().qdrant_url
        opened.enter_context(self._composition.beat())
        self._workers = Workers(self._composition, 2 if self._qdrant_url else 1)
        opened.callback(self._workers.close)
        self._done: Counter[str] = Counter()
        self._events = self._unannounced = self._lost = self._parked = 0

    def run(self) -> Outcome:
        """Ingest the fleet, do everything to it at once, and compare."""
        started = time.monotonic()
        self._tell([self._fleet.announcement(server) for server in self._fleet.all])
        self._await(self._has_converged, 120.0)
        self._fleet.sicken(self._plan.sick)
        for fault in self._plan.faults(self._rng):
            self._load()
            self._fleet.wait_for_listings(self._rng.randint(1, 12), within_s=2.0)
            self._strike(fault)
        self._load()
        converged_after_s = self._await(self._has_converged, self._plan.bound_s)
        compared, wrong = self._compare_twice()
        return self._outcome(time.monotonic() - started, converged_after_s, compared, wrong)

    def _settings(self) -> dict[str, str]:
        return {
            "TOOLSCALE_LEASE_S": str(LEASE_S),
            "TOOLSCALE_RETRY_AFTER_S": str(RETRY_AFTER_S),
            "TOOLSCALE_RETRY_MAX_S": "10",
            "TOOLSCALE_SWEEP_INTERVAL_S": "1",
            "TOOLSCALE_LISTING_TIMEOUT_S": "2",
            "TOOLSCALE_RESYNC_INTERVAL_S": str(self._plan.resync_s),
            "TOOLSCALE_WORKER_CONCURRENCY": "16",
            "TOOLSCALE_EMBEDDING_THREADS": "1",
        }

    def _load(self) -> None:
        """Let a tenth of the servers change, and some go down and up; chance decides what is said, and how often."""
        changes = max(2, self._plan.servers // 10)
        events = self._fleet.churn(changes)
        self._unannounced += changes - len({event.data.server_id for event in events})
        self._tell(events + self._fleet.flip(max(1, changes // 3)))

    def _tell(self, events: Iterable[ServerEvent]) -> None:
        for event in events:
            self._events += 1
            self._until_recorded(event)

    def _until_recorded(self, event: ServerEvent) -> None:
        emitted = partial(emit, event, self._intents, self._wake, due_in_s=RETRY_AFTER_S)
        self._await(lambda: _succeeds(emitted), 30.0)

    def _wake(self, server_id: str) -> None:
        try:
            send_reconcile(self._producer, server_id)
        except OperationalError:
            return  # the sweep finds what was recorded

    def _strike(self, fault: str) -> None:
        which = self._rng.randrange(2 if self._qdrant_url else 1)
        match fault:
            case "kill":
                self._workers.kill(which)
            case "redis":
                self._kill_redis()
            case "wipe":
                self._wipe()
            case "freeze":
                self._workers.freeze(which, LEASE_S + 1.0)
            case _:
                self._workers.restart(which)
        self._done[NAMES[fault]] += 1
        structlog.get_logger().info("fault_done", fault=fault, done=self._done.total())

    def _kill_redis(self) -> None:
        """Kill Redis right after the last event was acknowledged, and count those that it does not remember."""
        before = {intent.server_id: intent.desired for intent in self._intents.intents()}
        self._redis.kill()
        self._redis.start()
        after = {intent.server_id: intent.desired for intent in self._intents.intents()}
        lost = [server_id for server_id, desired in before.items() if after.get(server_id, 0) < desired]
        self._lost += len(lost)
        self._tell([self._fleet.announcement(self._fleet.servers[server_id]) for server_id in lost])

    def _wipe(self) -> None:
        """Wipe Redis once all that was said of healthy servers is reflected: what is not is lost with it."""
        self._await(self._has_converged, self._plan.bound_s)
        with redis.Redis.from_url(self._redis.url) as client:
            client.flushall()
        self._await(lambda: len(list(self._intents.intents())) == self._plan.servers, 30.0)

    def _has_converged(self) -> bool:
        """Return whether every healthy server's last list, and the last word on each, have been acted upon."""
        return all([self._is_settled(server_id) for server_id in self._fleet.servers])

    def _is_settled(self, server_id: str) -> bool:
        intent, server = self._intents.intent(server_id), self._fleet.servers[server_id]
        if intent and intent.status == "running" and intent.due_at is None:
            self._parked += 1
            self._tell([changed(server_id)])
        if server.mood != "good":
            return True
        return intent is not None and not intent.is_lagging and (not server.is_up or server.shown == server.tools)

    def _await(self, condition: Callable[[], bool], within_s: float) -> float | None:
        """Return after how many seconds the condition held; None when it did not within the bound."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > within_s:
                return None
            time.sleep(0.1)
        return time.monotonic() - started

    def _compare_twice(self) -> tuple[tuple[int, int], list[str]]:
        first, wrong = self._compare()
        time.sleep(APART_S)
        second, wrong_again = self._compare()
        return (first, second), wrong + wrong_again

    def _compare(self) -> tuple[int, list[str]]:
        """Stop the worker where the index is its own, compare, and start another."""
        if not self._qdrant_url:
            self._workers.stop()
        compared = differences(self._fleet, self._index)
        if not self._qdrant_url:
            self._workers = Workers(self._composition, 1)
        return compared

    def _outcome(self, seconds: float, converged: float | None, compared: tuple[int, int], wrong: list[str]) -> Outcome:
        return Outcome(
            made_at=f"{datetime.now(UTC):%Y-%m-%d}",
            seed=self._seed,
            index="a Qdrant server" if self._qdrant_url else "Qdrant Edge in the worker's data directory",
            workers=2 if self._qdrant_url else 1,
            servers=self._plan.servers,
            sick=len(self._fleet.all) - len(self._fleet.healthy),
            seconds=round(seconds, 1),
            faults=dict(self._done),
            events=self._events,
            changes_nobody_announced=self._unannounced,
            listings=self._fleet.listings,
            resync_s=self._plan.resync_s,
            bound_s=self._plan.bound_s,
            converged_after_s=None if converged is None else round(converged, 1),
            parked_and_announced_again=self._parked,
            lost_acknowledged_events=self._lost,
            tools_compared=compared,
            differences=tuple(wrong),
            machine=this_machine(),
        )


def run(plan: Plan, seed: int, directory: Path) -> Outcome:
    """Return what one run found; `directory` is made, and keeps the logs when the run did not pass."""
    with ExitStack() as opened:
        outcome = Chaos(plan, seed, directory, opened).run()
    if outcome.passed:
        shutil.rmtree(directory)
    return outcome


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except IntentsUnavailable:
        return False
    return True
