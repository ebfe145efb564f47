"""Stdio servers take turns to start, and large lists take slots; a crowd costs no server its place."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from shared.errors import ServerTimeout, ServerUnreachable
from shared.intents.intent import Intent
from shared.upstream.session import SMALL_BYTES, SMALL_NODES, SessionState
from tests.support.builders import WritePath, up, up_stdio, write_path
from tests.support.present import present
from tests.support.waiting import eventually
from workers.fetch.turns import FetchInterrupted, LargePayloadSlots, StartTurns, interrupt_fetches
from workers.ingest import reconcile


@contextmanager
def crowded(turns: StartTurns) -> Generator[None]:
    """Hold the only turn, and let another server wait for it."""
    with ThreadPoolExecutor(1) as pool, turns.turn("first"):
        waiting = pool.submit(take_turn, turns)
        eventually(lambda: turns.waiting == 1)
        yield
        assert not waiting.done()


def take_turn(turns: StartTurns) -> None:
    with turns.turn("other"):
        pass


def test_a_turn_that_ended_early_is_given_back_once() -> None:
    turns = StartTurns(1)

    with turns.turn("a") as end_turn:
        end_turn()
        with turns.turn("b"), ExitStack() as third:
            end_turn()
            waiting = third.enter_context(ThreadPoolExecutor(1)).submit(take_turn, turns)
            eventually(lambda: turns.waiting == 1)
            assert not waiting.done()
            third.callback(interrupt_fetches)


def test_a_start_that_waits_for_its_turn_is_interrupted_when_the_process_ends() -> None:
    turns = StartTurns(1)

    with ThreadPoolExecutor(1) as pool, turns.turn("first"):
        waiting = pool.submit(take_turn, turns)
        eventually(lambda: turns.waiting == 1)
        interrupt_fetches()
        with pytest.raises(FetchInterrupted, match=r"^other: "):
            waiting.result(timeout=30)

    assert turns.waiting == 0


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    return write_path(tmp_path)


def after_failure(path: WritePath, error: Exception, turns: StartTurns, *, announced: object) -> Intent:
    path.deps.intents.record(announced, due_in_s=60)  # type: ignore[arg-type]

    def fail(_: Intent) -> None:
        raise error

    with pytest.raises(type(error)):
        reconcile("s", replace(path.deps, list_server=fail, starts=turns))  # type: ignore[arg-type]
    return present(path.deps.intents.intent("s"))


def test_after_a_timeout_in_a_crowd_the_next_try_does_not_wait_for_the_backoff(path: WritePath) -> None:
    with crowded(turns := StartTurns(1)):
        intent = after_failure(path, ServerTimeout("s", "slow"), turns, announced=up_stdio())

    assert (intent.failures, intent.last_error) == (1, "s: slow")
    assert intent.message_pending
    assert path.deps.intents.claim_due(10) == ["s"]


@pytest.mark.parametrize(
    ("announced", "error", "crowd"),
    [
        (up_stdio(), ServerTimeout("s", "slow"), nullcontext),
        (up_stdio(), ServerUnreachable("s", "gone"), crowded),
        (up(), ServerTimeout("s", "slow"), crowded),
    ],
)
def test_any_other_failure_waits_for_the_backoff(
    path: WritePath,
    announced: object,
    error: Exception,
    crowd: Callable[[StartTurns], AbstractContextManager[object]],
) -> None:
    with crowd(turns := StartTurns(1)):
        intent = after_failure(path, error, turns, announced=announced)

    assert not intent.message_pending
    assert path.deps.intents.claim_due(10) == []


def test_a_server_that_times_out_again_and_again_waits_for_the_backoff_in_any_crowd(path: WritePath) -> None:
    pending: list[bool] = []

    with crowded(turns := StartTurns(1)):
        for _ in range(5):
            intent = after_failure(path, ServerTimeout("s", "slow"), turns, announced=up_stdio())
            pending.append(intent.message_pending)

    assert pending == [True, True, True, True, False]


# --- slots for large lists ---


def test_a_limited_number_of_servers_have_a_slot_at_a_time() -> None:
    slots = LargePayloadSlots(2)

    with slots.released("a"):
        assert [slots.try_acquire(each) for each in ("a", "b", "c", "a")] == [True, True, False, True]

    assert [slots.try_acquire(each) for each in ("b", "c", "a")] == [True, True, False]


def test_many_threads_never_have_more_slots_than_the_limit() -> None:
    slots = LargePayloadSlots(3)

    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(slots.try_acquire, map(str, range(200))))

    assert sum(taken) == 3


def test_a_small_message_waits_for_no_slot() -> None:
    async def hold() -> None:
        evidence = SessionState("s", anyio.CancelScope(), may_hold_large=lambda: False)
        with anyio.fail_after(30):
            await evidence.wait_for_slot(SMALL_BYTES, SMALL_NODES)

    anyio.run(hold)


@pytest.mark.parametrize(("size_bytes", "nodes"), [(SMALL_BYTES + 1, 0), (0, SMALL_NODES + 1)])
def test_a_large_message_waits_and_the_servers_time_does_not_run(size_bytes: int, nodes: int) -> None:
    answers = iter([False, False, False, True])

    async def hold() -> float:
        with anyio.CancelScope(deadline=anyio.current_time() + 0.1) as scope:
            evidence = SessionState("s", scope, may_hold_large=lambda: next(answers))
            began = scope.deadline
            await evidence.wait_for_slot(size_bytes, nodes)
            return scope.deadline - began
        raise AssertionError("the time ran out while waiting")

    assert anyio.run(hold) >= 0.15
    assert next(answers, None) is None
