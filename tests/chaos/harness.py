"""Faults under load, and then the question whether the catalogue equals the truth."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import redis
import structlog
from celery import Celery

from benchmarks.harness import this_machine
from shared.errors import IntentsUnavailable
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from tests.chaos.asking import asking
from tests.chaos.fleet import Fleet, serve
from tests.chaos.judging import Judge
from tests.chaos.load import Load, wait
from tests.chaos.plan import NAMES, Fault, Plan
from tests.chaos.results import Outcome
from tests.chaos.services import RedisProcess, Workers, delete_index
from tests.chaos.truth import differences
from tests.support.brisk import TIMES
from tests.support.ports import free_port
from tests.support.processes import APP, Composition, Running
from tests.support.qdrant_cluster import BINARY, Node, qdrant_nodes
from tests.support.qdrant_server import emptied_qdrant, qdrant_url

LEASE_S = 2.0
WORKERS_ON_A_SERVER = 3
RETRY_AFTER_S = 1.0
RETRY_MAX_S = 10.0
CONSTANTS = {
    f"{TIMES}.LEASE_S": LEASE_S,
    f"{TIMES}.REDELIVER_AFTER_S": RETRY_AFTER_S,
    f"{TIMES}.RETRY_MAX_S": RETRY_MAX_S,
    f"{TIMES}.SWEEP_INTERVAL_S": 1.0,
}
APART_S = 5.0
# Answers take longer than reconciliations: without a pause, many workers would end before their first answer.
AFTER_AN_ANSWER = 0.5
# How wrong a clock is: every process draws one of these at its start.
CLOCKS_AHEAD_S = (-120, 0, 120)
SKEWED = Path(__file__).parent / "skewed"
# Where the index is a worker's own, it is the worker who answers.
ANSWERING_WORKER = "tests.chaos.answering_worker"


class Chaos:
    """A composition of real processes, the fleet it follows, and all that is done to both.

    A Qdrant server at QDRANT_URL must be empty, since all that it holds is wiped. `node` is that server, if the run
    may kill it.
    """

    def __init__(self, plan: Plan, seed: int, directory: Path, opened: ExitStack, node: Node | None) -> None:
        self._node = node
        self._plan, self._seed, self._rng = plan, seed, random.Random(seed)
        opened.enter_context(emptied_qdrant())
        self._index = directory / "data"
        self._index.mkdir(parents=True)
        self._fleet = Fleet(plan.servers, self._rng)
        opened.enter_context(serve(self._fleet))
        self._redis = RedisProcess(directory / "redis")
        opened.callback(self._redis.kill)
        self._port = free_port()
        self._composition = Composition(self._redis.url, self._index, self._settings(), CONSTANTS)
        pace = RetryPolicy(RETRY_AFTER_S, RETRY_MAX_S)
        self._intents = opened.enter_context(closing(Intents(RedisStorage(connect(self._redis.url)), pace)))
        producer = opened.enter_context(Celery("producer", broker=self._redis.url))
        producer.conf.update(task_default_queue="toolscale", task_publish_retry=False)
        self._load = Load(self._fleet, self._intents, producer, self._rng, RETRY_AFTER_S)
        self._qdrant_url = qdrant_url()
        opened.enter_context(self._composition.beat(**self._clock()))
        self._workers = Workers(WORKERS_ON_A_SERVER if self._qdrant_url else 1, self._worker)
        opened.callback(self._workers.close)
        if self._qdrant_url:
            query = opened.enter_context(self._composition.run("query", "-m", "query"))
            query.wait_for("query_service_started")
        self._judge = Judge(self._fleet.history, self._fleet.always, self._is_blamed)
        self._done: Counter[Fault] = Counter()
        self._lost = 0
        self._wrong: list[str] = []

    def run(self) -> Outcome:
        """Ingest the fleet, do everything to it at once, and compare."""
        started = time.monotonic()
        self._load.tell([self._fleet.announcement(server) for server in self._fleet.all])
        wait(self._has_converged, 120.0)
        self._fleet.sicken(self._plan.sick)
        with asking(f"http://127.0.0.1:{self._port}/mcp", self._fleet, self._judge, random.Random(self._seed)):
            for fault in self._plan.in_order(self._rng):
                self._has_converged()  # now and then it has: what was gone by then must not be found again
                self._some_load()
                self._fleet.wait_for_listings(self._rng.randint(1, 12), within_s=1.0)
                if self._rng.random() < AFTER_AN_ANSWER:
                    self._wait_for_an_answer()
                self._strike(fault)
            self._some_load()
            converged_after_s = wait(self._has_converged, self._plan.bound_s)
            self._hear_of_all()
            compared = self._compare(), self._compare(after_s=APART_S)
        return self._outcome(time.monotonic() - started, converged_after_s, compared)

    def _settings(self) -> dict[str, str]:
        return {
            "TOOLSCALE_LISTING_TIMEOUT_S": "2",
            "TOOLSCALE_RESYNC_INTERVAL_S": str(self._plan.resync_s),
            "TOOLSCALE_WORKER_CONCURRENCY": "16",
            "TOOLSCALE_PORT": str(self._port),
        }

    def _worker(self, name: str) -> AbstractContextManager[Running]:
        app = APP if self._qdrant_url else ANSWERING_WORKER
        return self._composition.worker(name, app=app, **self._clock())

    def _clock(self) -> dict[str, str]:
        """Return the environment of a process whose clock may be wrong; nothing else of it is."""
        path = os.pathsep.join([str(SKEWED), os.environ.get("PYTHONPATH", "")])
        return {"PYTHONPATH": path, "CHAOS_CLOCK_AHEAD_S": str(self._rng.choice(CLOCKS_AHEAD_S))}

    def _is_blamed(self, server_id: str) -> bool:
        """Return whether the server is parked, or about to be: its reconciliation ran when workers died."""
        if server_id in self._workers.parked():
            return True
        try:
            intent = self._intents.intent(server_id)
        except IntentsUnavailable:
            return False
        return intent is not None and intent.is_suspect

    def _some_load(self) -> None:
        self._load.some(max(2, self._plan.servers // 10))

    def _strike(self, fault: Fault) -> None:
        which = self._rng.randrange(self._workers.count)
        match fault:
            case "kill":
                self._workers.kill(which)
            case "redis":
                self._kill_redis()
            case "qdrant":
                assert self._node
                self._node.kill()
                self._node.start()
                self._node.wait()
            case "flush" | "disk":
                self._wipe_redis(fault)
            case "index":
                self._lose_index()
            case "freeze":
                self._workers.freeze(which, LEASE_S + 1.0)
            case "roll_out":
                self._workers.restart(which)
        self._done[fault] += 1
        structlog.get_logger().info("fault_done", fault=fault, done=self._done.total())

    def _kill_redis(self) -> None:
        """Kill Redis right after the last event was acknowledged, and count those that it does not remember."""
        before = self._known()
        self._redis.kill()
        self._redis.start()
        after = self._known()
        lost = [
            server_id
            for server_id in before
            if server_id not in after or after[server_id].desired < before[server_id].desired
        ]
        self._lost += len(lost)
        self._load.tell([self._fleet.announcement(self._fleet.servers[server_id]) for server_id in lost])

    def _lose_index(self) -> None:
        """Delete the index while no worker runs, and wait until the loss is noticed: with Redis lost too, all is."""
        noticed = self._workers.said("index_rebuilding")
        self._fleet.lose_index()
        self._workers.without_any(self._delete_index, Running.kill)
        if wait(lambda: self._workers.said("index_rebuilding") > noticed, self._plan.bound_s) is None:
            self._wrong.append(f"nobody noticed within {self._plan.bound_s:g} s that the index was gone")

    def _delete_index(self) -> None:
        self._judge.index_lost()
        delete_index(self._index, self._qdrant_url)
        self._judge.index_lost()  # again: answers during the deletion may have contained tools

    def _wipe_redis(self, how: Fault) -> None:
        """Wipe Redis after the catalogue reflects all events of healthy servers: other events are lost."""
        if wait(self._has_converged, self._plan.bound_s) is None:
            self._wrong.append(f"not settled within {self._plan.bound_s:g} s, before a {how}")
        if how == "disk":
            self._redis.lose_disk()
            self._redis.start()
        else:
            with redis.Redis.from_url(self._redis.url) as client:
                client.flushall()
        if wait(lambda: len(self._known()) == self._plan.servers, self._plan.bound_s) is None:
            self._wrong.append(f"{len(self._known())} of {self._plan.servers} servers known again after a {how}")

    def _known(self) -> dict[str, Intent]:
        return {intent.server_id: intent for intent in self._intents.intents()}

    def _has_converged(self) -> bool:
        """Return whether every healthy server's last list, and the last word on each, have been acted upon."""
        self._wrong += self._workers.ended_by_themselves()
        if not all(server.shown == server.tools for server in self._fleet.healthy if server.is_up):
            return False
        known = self._known()  # read last: a reconciliation writes its tools before it commits
        if not all(_is_current(known.get(server.server_id)) for server in self._fleet.healthy):
            return False
        self._fleet.history.agree()
        return True

    def _wait_for_an_answer(self) -> None:
        before = self._judge.answers
        wait(lambda: self._judge.answers > before, self._plan.bound_s)

    def _hear_of_all(self) -> None:
        """Wait until all tools that are always offered were found again."""
        now = self._fleet.history.now()
        if wait(lambda: self._judge.have_all_been_found_since(now), self._plan.bound_s) is None:
            self._wrong.append(f"what is always offered was not found within {self._plan.bound_s:g} s after the end")

    def _compare(self, after_s: float = 0.0) -> int:
        """Compare, between two workers where the index is the worker's own; return how many tools there are."""
        time.sleep(after_s)
        counted: list[int] = []

        def compare() -> None:
            tools, wrong = differences(self._fleet, self._index)
            counted.append(tools)
            self._wrong += wrong

        if self._qdrant_url:
            compare()
        else:
            self._workers.without_any(compare, Running.stop)
        return counted[0]

    def _outcome(self, seconds: float, converged: float | None, compared: tuple[int, int]) -> Outcome:
        return Outcome(
            made_at=f"{datetime.now(UTC):%Y-%m-%d}",
            seed=self._seed,
            index="a Qdrant server" if self._qdrant_url else "Qdrant Edge in the worker's data directory",
            workers=self._workers.count,
            servers=self._plan.servers,
            sick=len(self._fleet.all) - len(self._fleet.healthy),
            seconds=round(seconds, 1),
            faults={NAMES[fault]: times for fault, times in self._done.items()},
            clocks_ahead_s=CLOCKS_AHEAD_S,
            events=self._load.events,
            unannounced_changes=self._load.unannounced,
            listings=self._fleet.listings,
            resync_s=self._plan.resync_s,
            bound_s=self._plan.bound_s,
            converged_after_s=None if converged is None else round(converged, 1),
            parked=self._workers.said("server_parked"),
            lost_acknowledged_events=self._lost,
            tools_compared=compared,
            differences=(*self._wrong, *self._judge.wrong),
            asked=self._judge.asked(),
            machine=this_machine(),
        )


def run(plan: Plan, seed: int, directory: Path) -> Outcome:
    """Return what one run found; `directory` is made, and keeps the logs when the run did not pass.

    With QDRANT_BINARY, the index is on a server of the run's own.
    """
    with ExitStack() as opened:
        node = None
        if BINARY:
            (node,) = opened.enter_context(qdrant_nodes(directory / "qdrant", 1))
            opened.enter_context(patch.dict(os.environ, QDRANT_URL=node.url))
        outcome = Chaos(plan if node else plan.without("qdrant"), seed, directory, opened, node).run()
    if outcome.passed:
        shutil.rmtree(directory)
    return outcome


def _is_current(intent: Intent | None) -> bool:
    return intent is not None and not intent.is_lagging and not intent.parked
