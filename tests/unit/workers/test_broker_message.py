from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile.garbage import PROPER_BODY, REFUSED, message, with_header
from workers.broker.message import MessageRefused, check_message, check_task
from workers.tasks import ACCEPT_EVENT

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_message_that_celery_would_fail_on_is_refused_and_the_field_is_named(name: str) -> None:
    raw, reason = REFUSED[name]

    with pytest.raises(MessageRefused) as refused:
        check_task(raw)

    assert str(refused.value).startswith(reason)


def test_a_message_as_celery_sends_it_is_let_through() -> None:
    assert check_task(json.loads(json.dumps(message()))).headers.task == ACCEPT_EVENT


def test_a_tracing_header_is_let_through() -> None:
    assert check_task(with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))


@pytest.mark.parametrize("options", [{}, {"countdown": 5}, {"expires": 60}, {"priority": 3}, {"time_limit": 9.5}])
def test_whatever_a_producer_of_celerys_own_sends_is_let_through(options: dict[str, Any]) -> None:
    with Celery("producer", broker="memory://") as producer, producer.connection_for_write() as connection:
        producer.send_task(ACCEPT_EVENT, args=PROPER_BODY[0], queue="envelopes", connection=connection, **options)
        channel: Any = connection.default_channel

        assert check_task(channel._get("envelopes")).headers.task == ACCEPT_EVENT


@given(JSON)
def test_any_json_is_either_a_message_or_refused(raw: Any) -> None:
    with pytest.raises(MessageRefused):
        check_message(raw)


@given(st.sampled_from(sorted(message()["headers"])) | st.text(max_size=10), JSON)
def test_any_header_is_either_let_through_or_refused(name: str, value: Any) -> None:
    with suppress(MessageRefused):
        check_task(with_header(name, value))
