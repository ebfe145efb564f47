"""Wait for conditions, never for time."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], within_s: float = 90.0, what: str = "the condition") -> None:
    """Return as soon as the condition holds; fail when it does not within the bound.

    The bound is far above what a busy machine needs: it costs time only where the condition never comes true.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {within_s:g} s"
        time.sleep(0.02)
