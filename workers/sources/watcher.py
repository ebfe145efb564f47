"""Watch an orchestrator: list its running servers every few seconds, and announce the differences.

A list is the whole truth, so a lost change does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog
from pydantic import ValidationError

from shared.errors import Retryable
from shared.events import ServerAnnouncement
from shared.validation import first_problem
from workers.sources.announcer import RECONCILED_AT, Running, SourceAnnouncer

# The longest delay of a change.
LIST_EVERY_S = 5.0
# A watcher without a list for so long is not ready: the orchestrator, or the intent store, does not answer.
READY_WITHIN_S = 60.0

_log = structlog.get_logger()


class SourceUnavailable(Retryable):
    """An orchestrator did not answer, or its response was incomplete."""


class Source(Protocol):
    """A source of running servers."""

    name: str

    def running(self) -> list[Running]:
        """Return all servers that are running.

        Raises:
            SourceUnavailable: the orchestrator did not answer.
        """
        ...


class Watcher:
    """Announces the differences between a source and its intents; calls `beat` after each success."""

    def __init__(self, source: Source, announcer: SourceAnnouncer, *, beat: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._announcer = announcer
        self._beat = beat
        self._reconciled_at = RECONCILED_AT.labels(source.name)
        self._reconciled_at.set_to_current_time()

    def announce(self) -> None:
        """List the source, and announce the differences.

        Raises:
            SourceUnavailable: the source did not answer; no server is taken down.
            IntentsUnavailable: the intent store did not answer.
            EventInvalid: an event was refused.
        """
        emitted = self._announcer.announce_differences(self._source.running())
        self._reconciled_at.set_to_current_time()
        if emitted:
            _log.info("source_reconciled", source=self._source.name, events=len(emitted))
        self._beat()


class Announcements:
    """Reads announcements from labels and annotations; an invalid one is logged once and skipped."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()

    def read(self, origin: str, data: dict[str, object]) -> ServerAnnouncement | None:
        """Return the announcement of these fields, None if they are invalid; `origin` names their object in the log."""
        try:
            return ServerAnnouncement.model_validate({key: value for key, value in data.items() if value is not None})
        except ValidationError as error:
            self.refuse(origin, error)
            return None

    def refuse(self, origin: str, error: ValidationError) -> None:
        """Log once that the object is invalid."""
        reason = first_problem(error, "server")
        if (origin, reason) not in self._reported:
            self._reported.add((origin, reason))
            _log.warning("server_not_announced", origin=origin, reason=reason)


def scoped(source: str, scope: str) -> str:
    """Return the name of a source with its scope, if it has one."""
    return f"{source}/{scope}" if scope else source


def names(text: str | None) -> list[str]:
    """Return the values of a label, separated by commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
