"""The number of dead letters for the page of a query service beside workers."""

from __future__ import annotations

from contextlib import closing

import pytest

from query.__main__ import dead_letter_counter
from shared.intents.intents import open_intents
from shared.settings import load_settings

pytestmark = pytest.mark.process


def test_the_dead_letters_of_the_workers_are_counted(own_redis_url: str) -> None:
    settings = load_settings(redis_url=own_redis_url)
    count = dead_letter_counter(settings)
    before = count()
    with closing(open_intents(settings)) as intents:
        intents.add_dead_letter("no event", "{}")

    assert (before, count()) == (0, 1)


def test_without_an_answer_of_redis_the_number_is_unknown() -> None:
    assert dead_letter_counter(load_settings(redis_url="redis://127.0.0.1:1/0"))() is None
    assert dead_letter_counter(load_settings(redis_url=None))() is None
