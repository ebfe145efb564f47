"""The guarded transport on a real Redis, with connections that are lost."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from typing import TypeVar

import pytest
from celery import Celery
from kombu import Connection

from shared.intents.intents import open_intents
from shared.service.redis import connect
from shared.settings import Settings
from tests.support.builders import up
from workers.broker import guard_transport
from workers.celery_app import SWEEP_INTENTS, build_app
from workers.monitoring.metrics import QUEUE

pytestmark = [pytest.mark.process, pytest.mark.redis]

T = TypeVar("T")


def acknowledge_late(redis_url: str) -> str:
    """Return with what a worker's process is told that the connection of a message's channel is gone."""
    guard_transport(lambda _reason, _item: None)
    with Celery("producer", broker=redis_url) as producer:
        producer.send_task("any.task", queue="acknowledged-late")
    with Connection(redis_url) as connection:
        message = connection.SimpleQueue("acknowledged-late").get(timeout=30)
        connection.release()
        try:
            message.ack()
        except connection.connection_errors as error:
            return str(error)
    return "nothing was raised"


def in_its_own_process(ask: Callable[[str], T], redis_url: str) -> T:
    """Return what the function returns in a new process: kombu keeps transports and connections of a process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(ask, redis_url).result(timeout=60)


def test_a_message_acknowledged_after_its_connection_was_lost_raises_what_celery_expects(redis_url: str) -> None:
    told = in_its_own_process(acknowledge_late, redis_url)

    assert "connection of this channel was closed" in told


def sweep_of_an_empty_queue(redis_url: str) -> int:
    """Return the messages that a sweep sent for a due server to the queue, which has none."""
    settings = Settings(redis_url=redis_url)
    with build_app(settings) as app, closing(open_intents(settings)) as intents:
        intents.record(up("s"), due_in_s=0)
        intents.mark_complete()
        app.tasks[SWEEP_INTENTS].run()
        return int(connect(redis_url).llen(QUEUE))


def test_a_sweep_sends_messages_to_an_empty_queue(own_redis_url: str) -> None:
    assert in_its_own_process(sweep_of_an_empty_queue, own_redis_url) == 1
