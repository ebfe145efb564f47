"""Health checks whose result is read without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

import structlog

from shared.errors import ToolscaleError
from shared.service.every import every

CHECK_EVERY_S = 2.0

HealthCheck = Callable[[], str | None]
"""Returns the problem in words, or None."""


_log = structlog.get_logger()


class PeriodicCheck:
    """Runs a slow check every `every_s` seconds in a thread, and returns its last result.

    An error of the check is its problem, and so is a run that takes longer than `patience_s`.
    """

    def __init__(
        self, check: HealthCheck, every_s: float, patience_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._every_s = every_s
        self._patience_s = patience_s
        self._clock = clock
        self._problem: str | None = None
        self._answered_at = clock()

    @contextmanager
    def running(self) -> Generator[HealthCheck]:
        """Run the check until the block ends, and yield `problem`."""
        with every(self._every_s, self.run_once, "check_failed"):
            yield self.problem

    def run_once(self) -> None:
        """Run the check now, and store its result.

        Raises: what the check raises, unless it is a ToolscaleError.
        """
        try:
            self._problem = self._check()
        except ToolscaleError as error:
            self._problem = str(error)
        except Exception as error:
            self._problem = f"the check failed: {error!r}"
            raise
        finally:
            self._answered_at = self._clock()

    def problem(self) -> str | None:
        """Return the problem that the last run found; None if it found none."""
        silent_s = self._clock() - self._answered_at
        if silent_s > self._every_s + self._patience_s:
            return f"no answer for {silent_s:.0f} s"
        return self._problem


def first_problem(checks: Collection[HealthCheck]) -> HealthCheck:
    """Return a check that returns the first problem of these."""
    return lambda: next(filter(None, (check() for check in checks)), None)


class Prolonged:
    """Returns the problem of a check that has lasted for `for_s` seconds, in which the broker had none."""

    def __init__(
        self, check: HealthCheck, broker: HealthCheck, for_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._broker = broker
        self._for_s = for_s
        self._clock = clock
        self._since: float | None = None
        self._is_logged = False

    def problem(self) -> str | None:
        """Return the problem, else None; its first return is logged. A break between two calls is not seen."""
        found = None if self._broker() else self._check()
        if found is None:
            self._since, self._is_logged = None, False
            return None
        if self._since is None:
            self._since = self._clock()
        if self._clock() - self._since < self._for_s:
            return None
        if not self._is_logged:
            self._is_logged = True
            _log.error("process_stuck", reason=found)
        return found


class Deadline:
    """A limit on the time between two calls of `touch`: `within_s` seconds."""

    def __init__(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._within_s = within_s
        self._clock = clock
        self._touched_at = clock()

    def touch(self) -> None:
        """Restart the time. Safe to call from any thread."""
        self._touched_at = self._clock()

    def problem(self) -> str | None:
        """Return a problem once the limit has passed, else None."""
        age_s = self._clock() - self._touched_at
        return f"not done for {age_s:.0f} s" if age_s > self._within_s else None
