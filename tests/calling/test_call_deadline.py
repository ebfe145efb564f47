"""The time that a call has: its timeout, progress of its server, and answers of its user."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.calling.connection import CallDeadline, longest_s

pytestmark = pytest.mark.anyio

Events = Sequence[tuple[str, float]]


def deadline_at(now: list[float], monkeypatch: pytest.MonkeyPatch, timeout_s: float = 60.0) -> CallDeadline:
    """Return the deadline of a call that has begun; the test moves the clock."""
    monkeypatch.setattr(anyio, "current_time", lambda: now[0])
    deadline = CallDeadline(timeout_s, now[0] + timeout_s)
    deadline.connected()
    return deadline


@pytest.mark.parametrize(("timeout_s", "most_s"), [(2.0, 20.0), (60.0, 600.0), (900.0, 3600.0), (7200.0, 7200.0)])
async def test_the_longest_call_has_ten_timeouts_and_at_most_an_hour_or_its_timeout(
    timeout_s: float, most_s: float
) -> None:
    assert longest_s(timeout_s) == most_s


@given(st.lists(st.tuples(st.sampled_from(["progress", "question"]), st.floats(0.0, 59.0)), max_size=60))
async def test_a_call_ends_a_timeout_after_its_last_progress_and_never_before_its_timeout(events: Events) -> None:
    """Whatever happens: questions take no time of the call, and all progress together extends it to ten timeouts."""
    with pytest.MonkeyPatch.context() as patch:
        now = [1_000.0]
        deadline = deadline_at(now, patch)
        waited_s, last = 0.0, 0.0
        for kind, after_s in events:
            if now[0] + after_s > deadline.scope.deadline:
                break
            if kind == "question":
                with deadline.waiting_for_client():
                    assert deadline.scope.deadline == float("inf")
                    now[0] += 10 * after_s
                waited_s += 10 * after_s
            else:
                now[0] += after_s
                deadline.progressed()
                last = now[0] - 1_000.0 - waited_s
            own_s = deadline.scope.deadline - 1_000.0 - waited_s
            assert own_s == pytest.approx(max(60.0, min(last + 60.0, 600.0)))


async def test_an_error_names_both_times_with_and_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    deadline = deadline_at(now, monkeypatch)
    silent = deadline.reason
    now[0] += 45
    deadline.progressed()

    assert (silent, deadline.reason) == (
        "no answer within 60 s in all, and no progress in the last 60 s",
        "no answer within 105 s in all, and no progress in the last 60 s",
    )
