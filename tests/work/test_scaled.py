"""The scaled composition with a real Redis and real worker processes; the index is Qdrant Edge in the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from shared.catalog import Scope, point_id
from shared.intents.intents import MIN_INTERVAL_S, Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from shared.settings import load_settings
from shared.text import BUNDLED_MODEL
from shared.text.embedding import BUNDLED_DIMENSION
from shared.text.tokens import counter
from tests.support.builders import changed, up
from tests.support.hostile.garbage import GARBAGE
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import Exchange, ScriptedServer, scripted_http
from tests.support.indexes import open_index
from tests.support.processes import SHORT_LEASE, Composition
from tests.support.waiting import eventually
from workers.celery_app import ACCEPT_EVENT

pytestmark = [pytest.mark.process, pytest.mark.redis]


@pytest.fixture
def composition(own_redis_url: str, tmp_path: Path) -> Composition:
    return Composition(own_redis_url, tmp_path, {})


@pytest.fixture
def intents(composition: Composition) -> Generator[Intents]:
    with closing(Intents(RedisStorage(connect(composition.redis_url)), RetryPolicy(1.0, 4.0))) as store:
        yield store


@pytest.fixture
def producer(composition: Composition) -> Generator[Celery]:
    """A producer that knows the broker and the task's name, and nothing else of Toolscale."""
    with Celery("producer", broker=composition.redis_url) as app:
        yield app


def announce(producer: Celery, server_id: str, url: str) -> None:
    event = up(server_id, url=url).model_dump(mode="json")
    producer.send_task(ACCEPT_EVENT, args=[event], queue="toolscale")


def is_committed(intents: Intents, *server_ids: str, generation: int = 1) -> Callable[[], bool]:
    def committed() -> bool:
        found = [intents.intent(server_id) for server_id in server_ids]
        return all(intent and intent.desired >= generation and not intent.is_lagging for intent in found)

    return committed


@contextmanager
def gated(*names: str) -> Generator[tuple[ScriptedServer, threading.Event, threading.Event]]:
    """Serve these tools once the gate is open; yield the server, `asked` for its tools, and the gate."""
    asked, gate = threading.Event(), threading.Event()
    pages = one_page(*(tool(name) for name in names))

    def respond(exchange: Exchange) -> None:
        if exchange.method == "tools/list":
            asked.set()
            gate.wait(60)
        exchange.play(pages)

    with scripted_http(respond) as server:
        yield server, asked, gate


def held(directory: Path) -> dict[str, tuple[str, int]]:
    """Return what the index holds once no worker does: name and count by point id."""
    with closing(open_index(load_settings(data_dir=directory), BUNDLED_MODEL, BUNDLED_DIMENSION)) as index:
        tools = index.tools(Scope(), limit=1000).tools
    return {
        point_id(indexed.server_id, indexed.definition.name): (
            indexed.qualified_name,
            indexed.token_counts["cl100k_base"],
        )
        for indexed in tools
    }


def truth(server_id: str, *names: str) -> dict[str, tuple[str, int]]:
    """Return what the index should hold of a server that offers these tools."""
    count = counter("cl100k_base")
    wires = {name: _wire(name) for name in names}
    return {point_id(server_id, name): (f"{server_id}:{name}", count(wire)) for name, wire in wires.items()}


def _wire(name: str) -> str:
    from mcp_types import Tool

    return Tool.model_validate(tool(name)).model_dump_json(by_alias=True, exclude_none=True)


def test_tools_are_there_in_the_end_when_the_worker_is_killed_in_mid_task(
    composition: Composition, intents: Intents, producer: Celery
) -> None:
    with composition.beat(), gated("read_file", "write_file") as (server, asked, gate):
        with replace(composition, constants=SHORT_LEASE).worker("first") as first:
            announce(producer, "files", server.url)
            assert asked.wait(60), first.output()
            first.kill()
        gate.set()

        with composition.worker("second") as second:
            eventually(is_committed(intents, "files"), what=second.output())
            assert second.stop() == 0

    assert held(composition.directory) == truth("files", "read_file", "write_file")


@pytest.mark.slow
def test_a_storm_costs_two_reconciliations_at_once_and_a_third_after_the_minimum_interval(
    composition: Composition, intents: Intents, producer: Celery
) -> None:
    with gated("read_file") as (server, _, gate), composition.worker() as worker, composition.beat():
        gate.set()
        started = time.monotonic()
        announce(producer, "files", server.url)
        eventually(is_committed(intents, "files"), what=worker.output())
        for recorded in (11, 21):
            for _ in range(10):
                producer.send_task(ACCEPT_EVENT, args=[changed("files").model_dump(mode="json")], queue="toolscale")
            eventually(is_committed(intents, "files", generation=recorded), what=worker.output())

        took_s = time.monotonic() - started

    assert 2 <= server.methods.count("tools/list") <= 3 + took_s / MIN_INTERVAL_S


@pytest.mark.slow
def test_a_recorded_event_whose_message_was_lost_is_found_by_the_sweep(
    composition: Composition, intents: Intents
) -> None:
    with gated("read_file") as (server, _, gate):
        gate.set()
        intents.record(up("files", url=server.url), due_in_s=0)

        with composition.worker() as worker, composition.beat():
            eventually(is_committed(intents, "files"), what=worker.output())


def test_messages_that_are_no_events_are_kept_for_people_and_never_end_the_worker(
    composition: Composition, intents: Intents, producer: Celery
) -> None:
    client = redis.Redis.from_url(composition.redis_url)
    with composition.worker() as worker, gated("read_file") as (server, _, gate):
        gate.set()
        refused: list[list[Any]] = [[{"specversion": "1.0"}], ["not an object"], [], [1, 2, 3]]
        for arguments in refused:
            producer.send_task(ACCEPT_EVENT, args=arguments, queue="toolscale")
        producer.send_task("toolscale.no_such_task", args=["x"], queue="toolscale")
        client.lpush("toolscale", *(item for item, _ in GARBAGE.values()))
        announce(producer, "files", server.url)

        eventually(is_committed(intents, "files"), what=worker.output())
        expected = len(GARBAGE) + len(refused) + 1
        eventually(lambda: len(intents.dead_letters(100)) == expected, what=str(intents.dead_letters(100)))
        assert worker.process.poll() is None
        eventually(lambda: client.hlen("unacked") == 0)  # the commit comes before the acknowledgement

    reasons = [letter.reason for letter in intents.dead_letters(100)]
    assert "id: missing; CloudEvents 1.0 requires it" in reasons
    assert "task: no task is named 'toolscale.no_such_task'" in reasons
    for name, (_, reason) in GARBAGE.items():
        assert any(found.startswith(reason) for found in reasons), (name, reasons)


@pytest.mark.slow
def test_an_endpoint_outside_the_allow_list_is_not_dialled(
    composition: Composition, intents: Intents, producer: Celery
) -> None:
    with composition.worker() as worker:
        announce(producer, "metadata", "http://169.254.169.254/latest")

        worker.wait_for("AddressForbidden")
        eventually(lambda: _failures(intents, "metadata") >= 1)


def _failures(intents: Intents, server_id: str) -> int:
    intent = intents.intent(server_id)
    return intent.failures if intent else 0
