"""The number of dead letters for the page of a query service beside workers."""

from __future__ import annotations

from contextlib import closing

import pytest

from query.catalogue import Catalogue
from query.records import Ledger
from shared.intents.intents import open_intents
from shared.settings import load_settings
from tests.support.fakes import FakeEmbedder, FakeIndex

pytestmark = pytest.mark.process


def dead_letters(redis_url: str) -> int | None:
    with closing(open_intents(load_settings(redis_url=redis_url))) as intents:
        return Catalogue(index := FakeIndex(), FakeEmbedder(), Ledger(index), intents=intents).dead_letters()


def test_the_dead_letters_of_the_workers_are_counted(own_redis_url: str) -> None:
    before = dead_letters(own_redis_url)
    with closing(open_intents(load_settings(redis_url=own_redis_url))) as intents:
        intents.add_dead_letter("no event", "{}")

    assert (before, dead_letters(own_redis_url)) == (0, 1)


def test_without_an_answer_of_redis_the_number_is_unknown() -> None:
    assert dead_letters("redis://127.0.0.1:1/0") is None
