"""Health checks whose result is read without waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from shared.errors import ToolscaleError
from shared.index import unreachable_reason
from shared.service.every import every
from shared.service.redis import connect
from workers.monitoring.metrics import read_queue

if TYPE_CHECKING:
    from shared.settings import Settings

CHECK_EVERY_S = 2.0
# A free thread starts a waiting task within milliseconds.
IDLE_AT_MOST_S = 15.0

STUCK_AFTER_S = 180.0
"""Seconds of a problem after which a restart is the only cure left."""

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


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """A worker at one moment: waiting messages, the number of ended tasks, and whether all its threads are busy."""

    waiting: int
    ended: int
    is_full: bool


class WorkerProgress:
    """Measures from samples for how long messages wait while no task ends.

    Measured by the monotonic clock of this process, since the clocks of senders may differ.
    """

    def __init__(self, listing_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the time limit of a listing: a worker with no free thread may end no task for so long."""
        self._listing_s = listing_s
        self._clock = clock
        self._last = WorkerSample(0, 0, is_full=False)
        self._still_since: float | None = None

    def add_sample(self, sample: WorkerSample) -> None:
        """Add a sample of now."""
        if not sample.waiting:
            self._still_since = None
        elif self._still_since is None or sample.ended != self._last.ended:
            self._still_since = self._clock()
        self._last = sample

    def problem(self) -> str | None:
        """Return a problem once messages wait for too long and no task ends, else None."""
        if self._still_since is None:
            return None
        still_s = self._clock() - self._still_since
        allowed_s = IDLE_AT_MOST_S + (self._listing_s if self._last.is_full else 0.0)
        if still_s <= allowed_s:
            return None
        return f"{self._last.waiting} messages wait, and no task has ended for {still_s:.0f} s"


@contextmanager
def broker_checked(settings: Settings) -> Generator[HealthCheck]:
    """Check until the block ends that Redis answers, and yield the check; without Redis it finds no problem."""
    if settings.redis_url is None:
        yield lambda: None
        return
    with connect(settings.redis_url) as client:

        def answers() -> None:
            read_queue(client)

        with PeriodicCheck(answers, CHECK_EVERY_S).running() as problem:
            yield problem


def warn_if_index_unreachable(settings: Settings) -> threading.Thread:
    """Check QDRANT_URL in a thread, and log a warning if no server answers there; return the thread."""
    url = settings.qdrant_url

    def warn() -> None:
        if url and (reason := unreachable_reason(url)):
            _log.warning("index_unreachable", setting="QDRANT_URL", reason=reason)

    thread = threading.Thread(target=warn, name="index check", daemon=True)
    thread.start()
    return thread
