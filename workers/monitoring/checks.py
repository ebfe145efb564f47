"""Checks that run again and again in threads of their own, so that whoever asks for readiness never waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from shared.errors import ToolscaleError

Probe = Callable[[], str | None]
"""Returns what is wrong, in words, or None; a ToolscaleError that it raises is what is wrong."""


class PeriodicCheck:
    """Runs a probe every `every_s` seconds; a probe that does not come back for `patience_s` counts as trouble."""

    def __init__(
        self, probe: Probe, every_s: float, patience_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._every_s = every_s
        self._patience_s = patience_s
        self._clock = clock
        self._problem: str | None = None
        self._answered_at = clock()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to run the probe; what hangs in it does not hold up the end of the process."""
        threading.Thread(target=self._run, name="toolscale check", daemon=True).start()

    def stop(self) -> None:
        """Begin no further run."""
        self._stopped.set()

    def run_once(self) -> None:
        """Run the probe now, and remember what it found."""
        try:
            self._problem = self._probe()
        except ToolscaleError as error:
            self._problem = str(error)
        self._answered_at = self._clock()

    def problem(self) -> str | None:
        """Return what is wrong, as of the last run; None when nothing is."""
        silent_s = self._clock() - self._answered_at
        if silent_s > self._every_s + self._patience_s:
            return f"no answer for {silent_s:.0f} s"
        return self._problem

    def _run(self) -> None:
        while True:
            self.run_once()
            if self._stopped.wait(self._every_s):
                return


class Deadline:
    """Remembers when something was last done; `within_s` is how long it may take until it is done again."""

    def __init__(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._within_s = within_s
        self._clock = clock
        self._done_at = clock()

    def touch(self) -> None:
        """Note that it was done now. Safe to call from any thread."""
        self._done_at = self._clock()

    def age_s(self) -> float:
        """Return the seconds since it was last done or, where it never was, since this was made."""
        return self._clock() - self._done_at

    def problem(self) -> str | None:
        """Return what is wrong, in words; None as long as it may take."""
        age_s = self.age_s()
        return f"not done for {age_s:.0f} s" if age_s > self._within_s else None
