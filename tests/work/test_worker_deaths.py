"""Workers whose pool's processes or whose Redis are killed, and those that are asked to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import redis

from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from tests.chaos.services import RedisProcess
from tests.support.brisk import TIMES
from tests.support.builders import up
from tests.support.hostile.scripted_http import Exchange, ScriptedServer, scripted_http
from tests.support.hostile.scripts import GOOD, on_tools_list, plays
from tests.support.present import present
from tests.support.processes import SHORT_LEASE, Composition, Running
from tests.support.redis_server import PROGRAM
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.redis,
    pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed: apt-get install redis-server"),
]

WITHIN_S = 60.0
ATTEMPTS = 3


@dataclass
class Site:
    """A composition on a Redis that may be killed, and a server."""

    redis: RedisProcess
    composition: Composition
    intents: Intents
    server: ScriptedServer

    def announce(self) -> None:
        """Record that the server is up; the sweep sends the message."""
        self.intents.record(up("s", url=self.server.url), due_in_s=0)

    def intent(self) -> Intent:
        return present(self.intents.intent("s"))

    def is_settled(self) -> bool:
        return not self.intent().is_lagging and self.intent().attempts == 0


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    with ExitStack() as opened:
        server = RedisProcess(tmp_path / "redis")
        opened.callback(server.kill)
        constants = {**SHORT_LEASE, f"{TIMES}.QUARANTINE_AFTER": ATTEMPTS, f"{TIMES}.RETRY_MAX_S": 2.0}
        composition = Composition(server.url, tmp_path, {}, constants)
        intents = opened.enter_context(closing(Intents(RedisStorage(connect(server.url)), RetryPolicy(1.0, 2.0))))
        scripted = opened.enter_context(scripted_http(plays(GOOD)))
        yield Site(server, composition, intents, scripted)


@pytest.mark.slow
def test_a_server_that_kills_pool_processes_is_parked_and_the_worker_goes_on(site: Site) -> None:
    killed: list[int] = []
    with ExitStack() as opened:
        opened.enter_context(site.composition.beat())
        worker = opened.enter_context(site.composition.worker("worker", "--pool", "processes", "--concurrency", "1"))
        act = on_tools_list(lambda exchange: _take_too_much_memory(exchange, worker, killed))
        deadly = opened.enter_context(scripted_http(act))
        site.intents.record(up("deadly", url=deadly.url), due_in_s=0)

        eventually(lambda: _is_parked(site.intents), WITHIN_S, what=worker.output())
        deaths = len(killed)
        site.announce()
        eventually(site.is_settled, WITHIN_S, what=worker.output())
        eventually(lambda: len(killed) > deaths, WITHIN_S, what=worker.output())
        assert worker.process.poll() is None

    assert deaths == ATTEMPTS


def _take_too_much_memory(exchange: Exchange, worker: Running, killed: list[int]) -> None:
    """Do to the pool's processes what the kernel does to one that takes too much memory, and answer nothing."""
    for child in psutil.Process(worker.process.pid).children():
        killed.append(child.pid)
        child.send_signal(signal.SIGKILL)
    exchange.close_connection = True


def _is_parked(intents: Intents) -> bool:
    intent = intents.intent("deadly")
    return intent is not None and intent.parked


@pytest.mark.slow
def test_a_worker_outlives_a_redis_that_is_killed_again_and_again(site: Site) -> None:
    gate = threading.Event()

    def waits(exchange: Exchange) -> None:
        gate.wait(WITHIN_S)
        exchange.play(GOOD)

    with (
        scripted_http(on_tools_list(waits)) as slow,
        site.composition.beat(),
        site.composition.worker("worker", TOOLSCALE_LISTING_TIMEOUT_S="120") as worker,
    ):
        site.intents.record(up("s", url=slow.url), due_in_s=0)
        eventually(lambda: "tools/list" in slow.methods, WITHIN_S, what=worker.output())
        for lost in (1, 2, 3):
            site.redis.kill()
            worker.wait_for("Connection to broker lost", times=lost)
            site.redis.start()
            eventually(lambda: _is_consuming(site.redis.url), WITHIN_S, what=worker.output())
        gate.set()

        eventually(site.is_settled, WITHIN_S, what=worker.output())
        assert worker.process.poll() is None


def _is_consuming(redis_url: str) -> bool:
    with closing(redis.Redis.from_url(redis_url)) as client:
        return any(connection["cmd"] == "brpop" for connection in client.client_list())


@pytest.mark.slow
def test_a_worker_that_is_asked_to_end_interrupts_servers_that_hang_and_blames_none(site: Site) -> None:
    hasty = {**site.composition.constants, "workers.celery_app.SHUTDOWN_GRACE_S": 0.5}
    with (
        scripted_http(on_tools_list(Exchange.hang)) as silent,
        site.composition.beat(),
        replace(site.composition, constants=hasty).worker("worker", TOOLSCALE_LISTING_TIMEOUT_S="120") as worker,
    ):
        site.intents.record(up("s", url=silent.url), due_in_s=0)
        eventually(lambda: "tools/list" in silent.methods, WITHIN_S, what=worker.output())

        assert worker.stop() == 0

    intent = site.intent()
    assert (intent.attempts, intent.failures, intent.is_lagging) == (0, 0, True)


def test_a_worker_restores_a_wiped_redis_at_its_start_without_beat(site: Site) -> None:
    site.announce()
    with site.composition.worker("first") as first:
        eventually(site.is_settled, WITHIN_S, what=first.output())
    with closing(redis.Redis.from_url(site.redis.url)) as client:
        client.flushall()

    with site.composition.worker("second") as second:
        eventually(lambda: site.intents.intent("s") is not None, WITHIN_S, what=second.output())
