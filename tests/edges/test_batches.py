"""A batch of events is recorded at once, whatever is in it: nobody sends it again and again from its start."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import override

from shared.errors import EventInvalid, IntentsUnavailable
from shared.events import ServerEvent
from shared.intents.intent import DeadLetter
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.storage import Kind, Replacement
from shared.intents.transitions import RetryPolicy
from tests.support.builders import changed, down, up
from workers.emit import Emitter
from workers.events_api.api import BATCH, MAX_BATCH, BatchTooLong, EventRecorder, RecordOutcome, documents, overall

PACE = RetryPolicy(1.0, 4.0)


class Disk(SqliteStorage):
    """A storage whose writes take a while, as on a busy disk; write number `fails_at` fails."""

    fails_at = writes = 0
    write_s = 0.02

    def _write(self) -> None:
        self.writes += 1
        time.sleep(self.write_s)
        if self.writes == self.fails_at:
            raise IntentsUnavailable("the disk is full")

    @override
    def replace(self, kind: Kind, replacements: Sequence[Replacement]) -> list[bool]:
        self._write()
        return super().replace(kind, replacements)

    @override
    def add_letters(self, letters: Sequence[DeadLetter], limit: int) -> None:
        self._write()
        super().add_letters(letters, limit)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "intents.sqlite3")


@pytest.fixture
def intents(disk: Disk) -> Generator[Intents]:
    with closing(Intents(disk, PACE)) as store:
        store.mark_complete()
        yield store


def record(intents: Intents, *events: object, woken: list[str] | None = None) -> list[RecordOutcome]:
    """Return the outcome of each event of a batch."""
    batch: list[Any] = [each.model_dump(mode="json") if isinstance(each, BaseModel) else each for each in events]
    wake = [] if woken is None else woken
    with closing(EventRecorder(Emitter(intents, wake.append, 5.0))) as recorder:
        return anyio.run(recorder.record, batch)


def statuses(outcomes: Sequence[RecordOutcome]) -> list[int]:
    return [outcome.status for outcome in outcomes]


KINDS: dict[str, Callable[[int], object]] = {
    "valid": lambda number: up(f"s{number}"),
    "no event": lambda number: {"id": str(number)},
    "no object": lambda number: f"text {number}",
    "unknown servers": lambda number: down(f"s{number}"),
    "mixed": lambda number: [up(f"s{number}"), {"id": "1"}, changed(f"n{number}"), down(f"s{number - 3}")][number % 4],
    "one server": lambda _: up("s"),
    "one unknown server": lambda _: changed("s"),
    "another's URL": lambda number: {**up(f"s{number}").model_dump(mode="json"), "source": "toolscale/mcp.json"},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_batch_ends_within_one_try_and_a_handful_of_writes(kind: str, disk: Disk, intents: Intents) -> None:
    outcomes = record(intents, *(KINDS[kind](number) for number in range(MAX_BATCH)))

    assert 503 not in statuses(outcomes)
    assert disk.writes <= 4
    letters = intents.dead_letters(MAX_BATCH)
    assert len(letters) == min(statuses(outcomes).count(400), MAX_BATCH)
    assert [letter.reason for letter in reversed(letters)] == [
        f"{outcome.field}: {outcome.reason}" for outcome in outcomes if outcome.status == 400
    ]


SERVERS = ("a", "b")
events = st.lists(
    st.one_of(
        *(st.builds(build, st.sampled_from(SERVERS)) for build in (up, down, changed)), st.just(None)
    ),
    max_size=8,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(events)
def test_a_batch_has_the_effect_of_its_events_one_by_one(tmp_path: Path, drawn: list[ServerEvent | None]) -> None:
    def effect(*batches: list[ServerEvent | None]) -> tuple[list[int], dict[str, str]]:
        path = tmp_path / f"{time.monotonic_ns()}.sqlite3"
        with closing(Intents(SqliteStorage(path), PACE)) as store:
            store.mark_complete()
            found = [
                status
                for batch in batches
                for status in statuses(record(store, *(each or {"id": "1"} for each in batch)))
            ]
            return found, {intent.server_id: intent.status for intent in store.intents()}

    assert effect(drawn) == effect(*([event] for event in drawn))


def test_a_stop_before_the_first_announcement_does_not_undo_it(intents: Intents) -> None:
    woken: list[str] = []

    outcomes = record(intents, down("s"), up("s"), changed("s"), woken=woken)

    assert statuses(outcomes) == [400, 202, 202]
    assert [intent.status for intent in intents.intents()] == ["running"]
    assert woken == ["s"]


def test_an_incomplete_store_keeps_nothing_back_for_good(disk: Disk) -> None:
    with closing(Intents(disk, PACE)) as store:
        first = record(store, down("s"), up("s"), changed("t"))
        store.mark_complete()
        second = record(store, down("s"), up("s"), changed("t"))
        assert [intent.status for intent in store.intents()] == ["running"]

    assert statuses(first) == [503, 202, 503]
    assert statuses(second) == [202, 202, 400]


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_store_that_fails_midway_is_continued_by_the_next_try(fails_at: int, disk: Disk, intents: Intents) -> None:
    batch = [*(up(f"s{number}") for number in range(20)), {"id": "1"}]
    disk.fails_at = fails_at

    first = record(intents, *batch)
    again = record(intents, *batch)

    assert overall(first) == 503
    assert statuses(again) == [202] * 20 + [400]
    assert len(list(intents.intents())) == 20
    assert len(intents.dead_letters(10)) == 1


def test_a_slow_store_answers_in_time_and_the_next_try_ends(disk: Disk, intents: Intents) -> None:
    disk.write_s = 2.5
    first = record(intents, *(up(f"s{number}") for number in range(MAX_BATCH)))
    disk.write_s = 0.0
    woken: list[str] = []
    again = record(intents, *(up(f"s{number}") for number in range(MAX_BATCH)), woken=woken)

    assert set(statuses(first)) == {503}
    assert set(statuses(again)) == {202}


@pytest.mark.parametrize("size", [MAX_BATCH + 1, 10 * MAX_BATCH])
def test_a_batch_beyond_the_limit_is_refused_as_a_whole(size: int, intents: Intents) -> None:
    with pytest.raises(BatchTooLong, match=str(MAX_BATCH)):
        documents({"content-type": BATCH}, b"[" + b"0," * (size - 1) + b"0]")

    assert intents.dead_letters(1) == []


def test_more_letters_than_are_kept_are_the_latest(tmp_path: Path) -> None:
    with closing(Intents(SqliteStorage(tmp_path / "i"), PACE, dead_letter_limit=5)) as store:
        store.mark_complete()
        record(store, *({"id": str(number)} for number in range(12)))

        assert [letter.body for letter in store.dead_letters(100)] == [f'{{"id": "{number}"}}' for number in
                                                                       range(11, 6, -1)]  # fmt: skip


def test_an_event_alone_is_refused_as_before(intents: Intents) -> None:
    with pytest.raises(EventInvalid, match="announced"):
        Emitter(intents, lambda _: None, 0.0).accept(down("nope").model_dump(mode="json"))

    assert len(intents.dead_letters(10)) == 1
