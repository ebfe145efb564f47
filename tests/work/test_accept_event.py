"""What becomes of an event while the store of the intents, or the index, has lost what it knew or does not answer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import IndexUnavailable
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.support.builders import definition, down, listing, up, write_path
from tests.support.present import present
from workers.dependencies import Dependencies
from workers.ingest import reconcile
from workers.work import Work


@pytest.fixture
def intents(tmp_path: Path) -> Generator[Intents]:
    """Return a store that is new, so that nobody knows yet whether it lost anything."""
    with closing(Intents(SqliteStorage(tmp_path / "new.sqlite3"), RetryPolicy(1.0, 4.0))) as store:
        yield store


def work(intents: Intents, dependencies: Callable[[], Dependencies]) -> Work:
    asked = list[str]()
    wake = asked.append, lambda: 0
    return Work(lambda: intents, dependencies, *wake, message_time_s=5.0, sweep_interval_s=5.0)


def as_sent(event: Any) -> dict[str, Any]:
    sent: dict[str, Any] = event.model_dump(mode="json", exclude_none=True)
    return sent


def test_an_event_is_recorded_before_the_index_is_waited_for(intents: Intents) -> None:
    recorded: list[bool] = []

    def unreachable() -> Dependencies:
        recorded.append(intents.intent("s") is not None)
        raise IndexUnavailable("does not answer")

    work(intents, unreachable).accept(as_sent(up("s")))

    assert recorded == [True]


def test_word_of_a_server_that_the_store_lost_is_recorded_once_it_is_restored(intents: Intents, tmp_path: Path) -> None:
    path = write_path(tmp_path / "before")
    path.world.servers["s"] = listing(definition("a"))
    path.deps.intents.record(up("s"), due_in_s=60)
    reconcile("s", path.deps)

    work(intents, lambda: replace(path.deps, intents=intents)).accept(as_sent(down("s")))

    intent = present(intents.intent("s"))
    assert intent.status == "stopped"
    assert intents.dead_letters(10) == []


def test_word_of_a_server_that_the_store_lost_is_sent_again_while_the_index_does_not_answer(
    intents: Intents,
) -> None:
    def unreachable() -> Dependencies:
        raise IndexUnavailable("does not answer")

    with pytest.raises(IndexUnavailable):
        work(intents, unreachable).accept(as_sent(down("s")))

    assert intents.dead_letters(10) == []
