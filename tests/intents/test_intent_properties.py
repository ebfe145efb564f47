"""The catalogue ends equal to the servers, despite lost messages, reconciliations and workers.

Two machines, each over both intent stores. In the first, hypothesis plays broker, workers and sweep against a store.
In the second it plays the world around the real tasks: events arrive, servers change, and reconciliations are
interrupted at any step. Waits are zero seconds long, so everything planned is due; only its order is random.
`CHAOS_SCHEDULES` sets how many schedules are tried.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from tests.chaos.fates import Fates
from tests.chaos.playing import how_to_play, play, redis_at, sqlite_in
from tests.chaos.schedules import Chaos, ChaosWithoutRetries, OpenStore

SETTINGS = how_to_play(int(os.environ.get("CHAOS_SCHEDULES", "15")))


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Return a function that opens an empty store."""
    if request.param == "sqlite":
        return sqlite_in(tmp_path)
    return redis_at(str(request.getfixturevalue("redis_url")))


CHANGES = ("up x", "up y", "down", "silence")


def with_a_change_to_come(directory: Path) -> Chaos:
    """Return a world that has settled, in which a server then changed its tools."""
    world = Chaos(sqlite_in(directory))
    world.change_tools("a", {"t": "does x", "v": "does x"})
    world.say("up", "a", ("x",))
    world.settle()
    world.change_tools("a", {"t": "does y", "u": "does x", "v": "does x"})
    return world


@pytest.mark.parametrize("second", CHANGES)
@pytest.mark.parametrize("first", CHANGES)
def test_a_change_after_a_reconciliation_killed_at_any_step_ends_in_the_truth(
    tmp_path: Path, first: str, second: str
) -> None:
    for step in count():
        world = with_a_change_to_come(tmp_path)
        was_killed = world.happen("a", first, step, world.crash)
        world.happen("a", second)

        world.teardown()
        if not was_killed:
            return  # the reconciliation has no more steps


@pytest.mark.parametrize("second", CHANGES)
@pytest.mark.parametrize("first", CHANGES)
def test_a_write_that_comes_after_those_of_another_run_is_made_good_whatever_it_was(
    tmp_path: Path, first: str, second: str
) -> None:
    for step in count():
        world = with_a_change_to_come(tmp_path)
        was_frozen = world.happen("a", first, step, lambda: world.freeze("a", second))  # noqa: B023  # called at once

        world.teardown()
        if not was_frozen:
            return  # the reconciliation has no more steps


@pytest.mark.parametrize("was_stopped_by", ["down", "silence"])
def test_a_return_during_which_the_intents_are_lost_at_any_step_ends_in_the_truth(
    open_store: OpenStore, was_stopped_by: str
) -> None:
    for step in count():
        world = ChaosWithoutRetries(open_store)
        world.say("up", "a")
        world.settle()
        world.happen("a", was_stopped_by)
        world.silent.clear()
        world.say("up", "a")
        world.steps.interruptions = [*[lambda: None] * step, world.lose_all_intents, world.sweep]
        world.settle()
        was_lost, world.steps.interruptions = world.was_wiped, []
        world.change_tools("a", {})

        world.teardown()
        if not was_lost:
            return  # the reconciliations have no more steps


def test_a_stop_killed_at_any_step_is_in_the_record_or_the_next_reconciliation_completes_it(tmp_path: Path) -> None:
    for step in count():
        world = ChaosWithoutRetries(sqlite_in(tmp_path))
        world.say("up", "a", ("x",))
        world.settle()

        was_killed = world.happen("a", "silence", step, world.crash)

        world.teardown()
        if not was_killed:
            return  # the reconciliation has no more steps


def test_every_server_is_reconciled_after_its_last_event_despite_lost_messages_and_runs(
    open_store: OpenStore,
) -> None:
    play(Fates, open_store, SETTINGS)


@pytest.mark.parametrize("world", [Chaos, ChaosWithoutRetries])
def test_the_catalogue_ends_equal_to_the_truth_wherever_reconciliations_are_interrupted(
    open_store: OpenStore, world: type[Chaos]
) -> None:
    play(world, open_store, SETTINGS)
