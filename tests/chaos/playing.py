"""Play schedules of hypothesis against the write path, and note what was played."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from benchmarks.harness import this_machine
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.sqlite import SqliteStorage
from shared.service.redis import connect
from tests.chaos.fates import Fates
from tests.chaos.results import Played, Schedules
from tests.chaos.schedules import NO_WAIT, Chaos, ChaosWithoutRetries, OpenStore
from tests.chaos.tally import Tallied, Tally
from tests.support.redis_server import redis_server

STEPS_AT_MOST = 40

Machine = Callable[[OpenStore, Tally], Tallied]

MACHINES: dict[str, Machine] = {
    "messages and reconciliations, on the store alone": Fates,
    "the real tasks, interrupted at any step": Chaos,
    "the same, quarantined or parked after the first failure": ChaosWithoutRetries,
}


def play_all(schedules: int, chosen: int, told: Callable[[Played], None]) -> Schedules:
    """Play so many schedules of each machine on each store; `chosen` is the seed, and `told` receives each result.

    It starts a real Redis, and empties it before each schedule.
    """
    with ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="schedules-")))
        url = opened.enter_context(redis_server(directory))
        stores = {"SQLite": sqlite_in(directory), "Redis": redis_at(url)}
        runs = tuple(_play_each(stores, schedules, chosen, told))
    return Schedules(
        made_at=f"{datetime.now(UTC):%Y-%m-%d}",
        seed=chosen,
        steps_at_most=STEPS_AT_MOST,
        runs=runs,
        machine=this_machine(),
    )


def how_to_play(schedules: int) -> settings:
    """Return the settings of so many schedules."""
    return settings(
        max_examples=schedules,
        stateful_step_count=STEPS_AT_MOST,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def play(
    machine: Machine, open_store: OpenStore, how: settings, tally: Tally | None = None, chosen: int | None = None
) -> None:
    """Play this machine on stores of this kind; `chosen` is a seed that makes the same choices again.

    Raises: the error of its shortest failing schedule, with that schedule in its notes.
    """
    counted = tally or Tally()

    def begin() -> Tallied:
        return machine(open_store, counted)

    factory = begin if chosen is None else seed(chosen)(begin)
    run_state_machine_as_test(factory, settings=how)  # type: ignore[arg-type]  # any factory will do


def sqlite_in(directory: Path) -> OpenStore:
    """Return a function that opens an empty store in a file below this directory."""
    return lambda: Intents(SqliteStorage(Path(tempfile.mkdtemp(dir=directory)) / "intents.sqlite3"), NO_WAIT)


def redis_at(url: str) -> OpenStore:
    """Return a function that empties this Redis and opens a store in it."""

    def open_emptied() -> Intents:
        client = connect(url)
        client.flushall()
        return Intents(RedisStorage(client), NO_WAIT)

    return open_emptied


def _play_each(
    stores: Mapping[str, OpenStore], schedules: int, chosen: int, told: Callable[[Played], None]
) -> Iterator[Played]:
    how = settings(how_to_play(schedules), database=None)  # what failed before is not played first
    for what, machine in MACHINES.items():
        for store, open_store in stores.items():
            played = _played(what, store, partial(play, machine, open_store, how, chosen=chosen))
            told(played)
            yield played


def _played(what: str, store: str, run: Callable[[Tally], None]) -> Played:
    tally, started, failure = Tally(), time.monotonic(), ""
    try:
        run(tally)
    except Exception as error:  # noqa: BLE001  # whatever a schedule ends in is what was looked for
        failure = "".join(traceback.format_exception_only(error))
    seconds = round(time.monotonic() - started, 1)
    return Played(
        what=what, store=store, schedules=tally.schedules, steps=tally.steps, seconds=seconds, failure=failure
    )
