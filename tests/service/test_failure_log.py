from __future__ import annotations

from itertools import pairwise

import structlog
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import IndexUnavailable, IntentsUnavailable
from shared.service.logging import PER_S, FailureLog

KINDS = (IndexUnavailable, IntentsUnavailable, ValueError, RecursionError)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 2 * PER_S))))
def test_each_kind_has_a_line_a_minute_and_no_failure_is_uncounted(
    failures: list[tuple[type[Exception], float]],
) -> None:
    now_s = 0.0
    failing = FailureLog("task_failed", lambda: now_s)
    logged: list[tuple[str, float]] = []
    with structlog.testing.capture_logs() as lines:
        for kind, after_s in failures:
            now_s += after_s
            failing.log(kind("away"))
            logged += [(str(line["kind"]), now_s) for line in lines[len(logged) :]]
        for kind in KINDS:
            now_s += 2 * PER_S
            failing.log(kind("away"))

    for kind in KINDS:
        own = [at_s for name, at_s in logged if name == kind.__name__]
        assert all(later - earlier >= PER_S for earlier, later in pairwise(own))
        of_kind = [line for line in lines if line["kind"] == kind.__name__]
        assert sum(1 + line["left_out"] for line in of_kind) == 1 + sum(kind is failed for failed, _ in failures)
