"""When something was last done that a process does again and again."""

from __future__ import annotations

import time
from collections.abc import Callable


class Freshness:
    """Remembers when something was last done; `within_s` is how long it may take until it is done again."""

    def __init__(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._within_s = within_s
        self._clock = clock
        self._done_at = clock()

    def note(self) -> None:
        """Note that it was done now. Safe to call from any thread."""
        self._done_at = self._clock()

    def age_s(self) -> float:
        """Return the seconds since it was last done or, where it never was, since this was made."""
        return self._clock() - self._done_at

    def trouble(self) -> str | None:
        """Return what is wrong, in words; None as long as it may take."""
        age_s = self.age_s()
        return f"not done for {age_s:.0f} s" if age_s > self._within_s else None
