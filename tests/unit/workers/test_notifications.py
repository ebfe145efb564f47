from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import NotificationsUnsupported, ServerAuthRequired, ServerError, ServerFailed
from tests.support.builders import up
from workers.intents.store import Intent
from workers.notifications.rate_limit import Allowance, NotificationSessionState
from workers.notifications.supervisor import Commits


def intent(desired: int, committed: int) -> Intent:
    return Intent(
        server_id="s", status="running", announcement=up("s").data, source="x", desired=desired, committed=committed
    )


def test_what_was_committed_before_the_first_look_at_the_intents_counts_as_long_ago() -> None:
    commits = Commits()

    commits.note([intent(3, 3)])

    assert not commits.is_recent("s")
    assert not commits.is_recent("unknown")


@pytest.mark.parametrize("before", [[], [intent(3, 2)], [intent(2, 2)]])
def test_a_commit_that_was_seen_to_happen_is_recent_for_a_while(before: list[Intent]) -> None:
    commits, past = Commits(), Commits(recent_s=0.0)
    for each in (commits, past):
        each.note(before)
        each.note([intent(3, 3)])
        each.note([intent(3, 3)])

    assert commits.is_recent("s")
    assert not past.is_recent("s")


def test_a_server_whose_look_is_still_to_come_needs_no_other_one() -> None:
    commits = Commits()

    commits.note([intent(4, 3)])

    assert commits.is_recent("s")


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=200))
def test_no_more_bytes_are_let_through_than_the_burst_and_the_rate_allow(sizes: list[int]) -> None:
    """On a clock of the test's own: what has come never exceeds burst, one chunk and rate times time."""
    allowance, clock = Allowance(10_000, 1_000), 0.0
    let_through = 0
    for size in sizes:
        clock += allowance.wait_s(size, clock)
        let_through += size

        assert let_through <= 10_000 + 1_000 * clock + 1e-6


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (405, NotificationsUnsupported),
        (404, NotificationsUnsupported),
        (401, ServerAuthRequired),
        (500, ServerFailed),
        (429, ServerFailed),
    ],
)
def test_a_refused_stream_says_whether_to_try_again_soon(status: int, verdict: type[ServerError]) -> None:
    async def refused() -> ServerError | None:
        evidence = NotificationSessionState("s", anyio.CancelScope())
        evidence.stream_answered(status)
        return evidence.error

    assert type(anyio.run(refused)) is verdict
