"""The choice of a replica, and the circuit breaker, by a clock of the test."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field

from query.calling.choice import (
    FIRST_WAIT_S,
    GIVEN_UP_S,
    LONGEST_WAIT_S,
    CircuitBreaker,
    ReplicaChoice,
)
from shared.catalog import ServerRecord
from tests.support.calling import replica_record

WITH_SESSIONS = "2025-11-25"
WITHOUT_SESSIONS = "2026-07-28"
KEEP_S = 10.0


@dataclass
class _Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class _World:
    clock: _Clock = field(default_factory=_Clock)
    keep_s: float = KEEP_S

    def __post_init__(self) -> None:
        self.breaker = CircuitBreaker(self.clock)
        self.choice = ReplicaChoice(self.breaker, self.keep_s, size=2, clock_s=self.clock)


def _replica(server_id: str, protocol_version: str = WITHOUT_SESSIONS, **fields: object) -> ServerRecord:
    return replica_record(server_id, protocol_version=protocol_version, **fields)


A, B, C = _replica("a"), _replica("b"), _replica("c")


def test_a_replica_with_fewer_calls_in_flight_is_chosen_and_ties_are_broken_by_chance() -> None:
    choice = _World().choice
    in_flight: Counter[str] = Counter()

    with ExitStack() as calls:
        for _ in range(30):
            chosen = choice.choose([A, B, C], "ann").server_id
            calls.enter_context(choice.count_call(chosen))
            in_flight[chosen] += 1

    assert in_flight == {"a": 10, "b": 10, "c": 10}
    assert {choice.choose([A, B], "ann").server_id for _ in range(100)} == {"a", "b"}


def test_a_fresh_list_goes_before_a_stale_one_and_before_the_last_replica() -> None:
    world = _World()
    stale = _replica("stale", WITH_SESSIONS, stale_since=1.0)
    world.choice.remember("ann", stale)

    with world.choice.count_call("a"):
        assert world.choice.choose([A, stale], "ann") is A


def test_a_caller_stays_with_its_replica_while_a_session_may_be_open() -> None:
    world = _World()
    first, second = _replica("a", WITH_SESSIONS), _replica("b", WITH_SESSIONS)
    world.choice.remember("ann", second)

    with world.choice.count_call("b"):
        assert world.choice.choose([first, second], "ann") is second
        assert world.choice.choose([first, second], "bob") is first
        world.clock.now_s += KEEP_S
        assert world.choice.choose([first, second], "ann") is first


def test_the_least_recently_used_entry_is_forgotten_first() -> None:
    choice, replica, other = _World().choice, _replica("a", WITH_SESSIONS), _replica("b", WITH_SESSIONS)
    for caller in ("ann", "bob", "ann", "eve"):
        choice.remember(caller, replica)

    with choice.count_call("a"):
        chosen = [choice.choose([replica, other], caller) for caller in ("ann", "bob", "eve")]

    assert chosen == [replica, other, replica]


def test_a_caller_that_gave_up_on_a_replica_gets_another_for_a_while_although_its_list_is_stale() -> None:
    world = _World()
    stale, other = _replica("stale", stale_since=1.0), _replica("other", stale_since=1.0)
    world.choice.give_up("ann", A)

    assert world.choice.choose([A, stale], "ann") is stale
    assert world.choice.choose([A, stale], "bob") is A
    world.breaker.failed("stale")
    assert world.choice.choose([A, stale], "ann") is A
    world.clock.now_s += GIVEN_UP_S
    assert world.choice.choose([A, other], "ann") is A


def test_a_caller_that_gave_up_on_its_replica_does_not_return_to_it_and_stays_after_it_gave_up_on_another() -> None:
    world = _World(keep_s=9 * GIVEN_UP_S)
    here, other, spare = (_replica(server_id, WITH_SESSIONS) for server_id in "abc")
    world.choice.remember("ann", here)

    with world.choice.count_call("a"):
        world.choice.give_up("ann", other)
        assert world.choice.choose([here, spare], "ann") is here
        world.choice.give_up("ann", here)
        world.clock.now_s += GIVEN_UP_S
        assert world.choice.choose([here, spare], "ann") is spare


def test_an_avoided_replica_comes_behind_a_stale_one_and_among_avoided_ones_the_first_due() -> None:
    world = _World()
    stale = _replica("stale", stale_since=1.0)
    world.breaker.failed("b")
    world.clock.now_s += 0.5
    world.breaker.failed("a")

    assert world.choice.choose([A, B, stale], "ann") is stale
    assert world.choice.choose([A, B], "ann") is B


def test_the_time_doubles_with_each_failure_up_to_the_longest() -> None:
    world = _World()
    waits_s: list[float] = []
    for _ in range(12):
        world.breaker.failed("a")
        until = world.breaker.avoided_until("a")
        assert until is not None
        waits_s.append(until - world.clock.now_s)
        world.clock.now_s = until

    assert waits_s[:4] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S, 8 * FIRST_WAIT_S]
    assert waits_s[-1] == LONGEST_WAIT_S


def test_failures_of_calls_that_were_in_flight_together_count_once() -> None:
    world = _World()
    for _ in range(50):
        world.breaker.failed("a")

    assert world.breaker.avoided_until("a") == world.clock.now_s + FIRST_WAIT_S


def test_one_probe_begins_when_the_time_is_over_and_its_success_ends_the_avoidance() -> None:
    world = _World()
    world.breaker.failed("a")

    assert world.breaker.begin_probe(["a", "b"]) is None
    world.clock.now_s += FIRST_WAIT_S
    assert world.breaker.begin_probe(["a", "b"]) == "a"
    assert world.breaker.begin_probe(["a", "b"]) is None
    assert world.breaker.avoided_until("a") is not None
    world.breaker.end_probe("a", is_open=True)
    assert world.breaker.avoided_until("a") is None


def test_the_time_grows_after_a_probe_that_fails_and_after_a_call_that_fails_in_spite_of_its_probe() -> None:
    world = _World()
    world.breaker.failed("a")
    for is_open, wait_s in ((False, 2 * FIRST_WAIT_S), (True, 4 * FIRST_WAIT_S)):
        until = world.breaker.avoided_until("a")
        assert until is not None
        world.clock.now_s = until
        assert world.breaker.begin_probe(["a"]) == "a"
        world.breaker.end_probe("a", is_open=is_open)
        world.breaker.failed("a")
        assert world.breaker.avoided_until("a") == world.clock.now_s + wait_s


def test_an_undecided_probe_is_repeated() -> None:
    world = _World()
    world.breaker.failed("a")
    world.clock.now_s += FIRST_WAIT_S
    world.breaker.begin_probe(["a"])
    world.breaker.end_probe("a", is_open=None)

    assert world.breaker.begin_probe(["a"]) == "a"


def test_an_answer_forgets_all_failures() -> None:
    world = _World()
    world.breaker.failed("a")
    world.clock.now_s += FIRST_WAIT_S
    world.breaker.failed("a")
    world.breaker.succeeded("a")
    assert world.breaker.avoided_until("a") is None

    world.breaker.failed("a")
    assert world.breaker.avoided_until("a") == world.clock.now_s + FIRST_WAIT_S
