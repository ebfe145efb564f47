"""The guarded transport on a real Redis, with connections that are lost."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from celery import Celery
from kombu import Connection

from workers.broker.transport import guard_transport

pytestmark = pytest.mark.redis


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


def test_a_message_acknowledged_after_its_connection_was_lost_raises_what_celery_expects(redis_url: str) -> None:
    # in a process of its own, as kombu keeps connections of a process for whoever comes next
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        told = process.submit(acknowledge_late, redis_url).result(timeout=60)

    assert "connection of this channel was closed" in told
