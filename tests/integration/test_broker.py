"""The guarded transport on a real Redis, with connections that are lost."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu import Connection

from workers.broker import survive_garbage

pytestmark = pytest.mark.redis


def test_a_message_acknowledged_after_its_connection_was_lost_raises_what_celery_expects(redis_url: str) -> None:
    survive_garbage(lambda _reason, _item: None)
    with Celery("producer", broker=redis_url) as producer:
        producer.send_task("any.task", queue="acknowledged-late")
    with Connection(redis_url) as connection:
        message = connection.SimpleQueue("acknowledged-late").get(timeout=5)
        connection.release()

        with pytest.raises(connection.connection_errors, match="connection of this channel was closed"):
            message.ack()
