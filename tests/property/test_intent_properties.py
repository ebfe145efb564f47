"""Whatever happens to messages, looks, workers and servers, the catalogue ends equal to what the servers offer.

Two machines, each over both intent stores. In the first, hypothesis plays broker, workers and sweep against a store.
In the second it plays the world around the real tasks: events arrive, servers change, and looks are cut off, at any
step of a look. Waits are zero seconds long, so that everything planned is due: only its order is left to chance.
`CHAOS_SCHEDULES` sets how many schedules are tried.
"""

from __future__ import annotations

import os
import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.chaos.schedules import (
    NO_WAIT,
    ROUNDS_TO_SETTLE,
    Chaos,
    Kind,
    OpenStore,
    event,
    kinds,
    server_ids,
)
from workers.dependencies import Patience
from workers.intents.contract import Intent, IntentStore
from workers.intents.redis_store import RedisIntents, connect
from workers.intents.sqlite_store import SqliteIntents

SCHEDULES = int(os.environ.get("CHAOS_SCHEDULES", "15"))
SETTINGS = settings(
    max_examples=SCHEDULES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Return a function that opens an empty store."""
    if request.param == "sqlite":
        return lambda: _sqlite(tmp_path)
    url = str(request.getfixturevalue("redis_url"))

    def open_emptied() -> IntentStore:
        client = connect(url)
        client.flushall()
        return RedisIntents(client, NO_WAIT)

    return open_emptied


class Fates(RuleBasedStateMachine):
    """Broker, workers and sweep as they may be, on one store; `messages` are under way, `looks` have begun."""

    def __init__(self, open_store: OpenStore) -> None:
        super().__init__()
        self.store = open_store()
        self.messages: list[str] = []
        self.looks: dict[str, Intent] = {}
        self.said: dict[str, str] = {}

    @rule(kind=kinds, server_id=server_ids)
    def record(self, kind: Kind, server_id: str) -> None:
        if kind != "up" and server_id not in self.said:
            return
        recorded = self.store.record(event(kind, server_id), due_in_s=0)
        if kind != "changed":
            self.said[server_id] = "running" if kind == "up" else "stopped"
        if recorded.needs_wake:
            self.messages.append(server_id)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        server_id = self.messages.pop(data.draw(st.integers(0, len(self.messages) - 1)))
        if server_id in self.looks:
            return  # its lease is held: the run at it will ask again
        begun = self.store.begin(server_id)
        if begun and begun.is_lagging:
            self.looks[server_id] = begun

    @precondition(lambda self: self.looks)
    @rule(data=st.data(), fate=st.sampled_from(("succeed", "succeed", "fail", "rest", "die")))
    def end_look(self, data: st.DataObject, fate: str) -> None:
        server_id = data.draw(st.sampled_from(sorted(self.looks)))
        self._end(self.looks.pop(server_id), fate)

    def _end(self, begun: Intent, fate: str) -> None:
        match fate:
            case "succeed":
                after = self.store.commit(begun.server_id, begun.desired)
            case "fail":
                after = self.store.fail(begun.server_id, begun.desired)
            case "rest":
                after = self.store.rest(begun.server_id, begun.desired)
            case _:
                return
        if after.awaited:
            self.messages.append(begun.server_id)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), copies=st.sampled_from((0, 2)))
    def lose_or_repeat_a_message(self, data: st.DataObject, copies: int) -> None:
        server_id = self.messages.pop(data.draw(st.integers(0, len(self.messages) - 1)))
        self.messages.extend([server_id] * copies)

    @rule()
    def sweep(self) -> None:
        self.messages.extend(self.store.claim_due(100))

    @rule()
    def restart_with_a_broker_in_memory(self) -> None:
        self.messages.clear()
        self.looks.clear()
        self.store.forget_messages()

    @invariant()
    def no_more_is_committed_than_was_asked_for(self) -> None:
        assert all(intent.committed <= intent.desired for intent in self.store.intents())

    @invariant()
    def the_last_event_decides(self) -> None:
        assert {intent.server_id: intent.status for intent in self.store.intents()} == self.said

    @invariant()
    def whoever_lags_or_is_awaited_has_a_time(self) -> None:
        for intent in self.store.intents():
            assert intent.due_at is not None or not (intent.is_lagging or intent.awaited), intent

    def teardown(self) -> None:
        """Once faults stop, every server's last event is acted upon."""
        for begun in self.looks.values():
            self._end(begun, "die")
        self.looks.clear()
        for _ in range(ROUNDS_TO_SETTLE):
            self.sweep()
            while self.messages:
                server_id = self.messages.pop()
                after = self.store.begin(server_id)
                if after and after.is_lagging:
                    self._end(after, "succeed")
        lagging = [intent for intent in self.store.intents() if intent.is_lagging]
        self.store.close()
        assert not lagging


class ChaosWithoutPatience(Chaos):
    """The same where a server is stopped by its first failed look, and parked by the first that kills its worker."""

    patience = Patience(looks=1, stop_after_s=0.0)


CHANGES = ("up x", "up y", "down", "silence")


@pytest.mark.parametrize("second", CHANGES)
@pytest.mark.parametrize("first", CHANGES)
def test_a_change_after_a_look_that_was_killed_at_any_step_ends_in_the_truth(
    tmp_path: Path, first: str, second: str
) -> None:
    for step in count():
        world = Chaos(lambda: _sqlite(tmp_path))
        world.change_tools("a", {"t": "does x", "v": "does x"})
        world.say("up", "a", ("x",))
        world.settle()

        world.change_tools("a", {"t": "does y", "u": "does x", "v": "does x"})
        was_killed = world.happen("a", first, killed_at=step)
        world.happen("a", second)

        world.teardown()
        if not was_killed:
            return  # the look has no more steps


def test_a_stop_that_was_killed_at_any_step_is_in_the_record_or_the_next_look_makes_up_for_it(tmp_path: Path) -> None:
    for step in count():
        world = ChaosWithoutPatience(lambda: _sqlite(tmp_path))
        world.say("up", "a", ("x",))
        world.settle()

        was_killed = world.happen("a", "silence", killed_at=step)

        world.teardown()
        if not was_killed:
            return  # the look has no more steps


def test_every_server_is_looked_at_after_its_last_event_whatever_becomes_of_messages_and_looks(
    open_store: OpenStore,
) -> None:
    run_state_machine_as_test(lambda: Fates(open_store), settings=SETTINGS)  # type: ignore[arg-type]  # any factory will do


@pytest.mark.parametrize("world", [Chaos, ChaosWithoutPatience])
def test_the_catalogue_ends_equal_to_the_truth_wherever_looks_are_cut_off(
    open_store: OpenStore, world: type[Chaos]
) -> None:
    run_state_machine_as_test(lambda: world(open_store), settings=SETTINGS)  # type: ignore[arg-type]  # any factory will do


def _sqlite(directory: Path) -> SqliteIntents:
    return SqliteIntents(Path(tempfile.mkdtemp(dir=directory)) / "intents.sqlite3", NO_WAIT)
