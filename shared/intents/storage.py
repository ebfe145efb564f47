"""The storage behind `Intents`: texts replaced by compare-and-set, an order of due times, notes, letters and locks.

A storage knows no rule of an intent. Redis and SQLite implement it, and one contract suite covers both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from shared.intents.intent import Backlog, DeadLetter

Kind = Literal["intent", "definitions"]
"""The two documents of a server."""

NoteName = Literal["complete", "migration"]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A document of a server that replaces the text `before`; None: there is none.

    An equal text is not written and is no change. Only intents have a `due_at`, in seconds since the epoch.
    """

    server_id: str
    before: str | None
    after: str | None
    due_at: float | None = None


class Lease(Protocol):
    """The right to write one server's tools, renewed in the background until released."""

    def assert_held(self) -> None:
        """Raise LeaseHeld when the lease was lost, so that a suspended run cannot write late."""
        ...


class Storage(Protocol):
    """Documents of servers, and what goes with them. Safe to call from several threads and processes.

    Every method raises IntentsUnavailable when the storage does not answer.
    """

    def get(self, kind: Kind, server_ids: Sequence[str]) -> tuple[float, list[str | None]]:
        """Return the time of the clock, and the document of each of these servers; None where there is none."""
        ...

    def replace(self, kind: Kind, replacements: Sequence[Replacement]) -> list[bool]:
        """Replace each document whose text is still `before`; return which are replaced, durable on return."""
        ...

    def server_ids(self) -> list[str]:
        """Return the servers with an intent, in order."""
        ...

    def due(self, limit: int, longest_wait_s: float) -> list[str]:
        """Return servers that are due, the longest waiting first.

        A time further ahead than `longest_wait_s` is due too: the clock went back since it was stored.
        """
        ...

    def changed(self, since: str) -> tuple[str, list[str] | None]:
        """Return the present position, and the servers whose intent changed after `since`.

        None in place of the servers: the storage does not have the changes since then.
        """
        ...

    def note(self, name: NoteName) -> str | None:
        """Return a note, None when there is none."""
        ...

    def set_note(self, name: NoteName, text: str | None) -> None:
        """Replace a note; None removes it."""
        ...

    def add_letters(self, letters: Sequence[DeadLetter], limit: int) -> None:
        """Add dead letters, and delete the oldest beyond the limit."""
        ...

    def letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest dead letters, newest first."""
        ...

    def backlog(self, longest_wait_s: float) -> Backlog:
        """Return the backlog as of now, with `due` as above; its cost does not grow with the number of servers."""
        ...

    def lease(self, name: str) -> AbstractContextManager[Lease]:
        """Hold the lease of this name until the block ends; a dead holder's lease expires, also if the clock went back.

        Raises:
            LeaseHeld: another run holds it.
        """
        ...

    def now(self) -> float:
        """Return seconds since the epoch by the clock that all processes share."""
        ...

    def next_revision(self) -> int:
        """Return microseconds since the epoch, greater than any earlier revision, also after the data were lost."""
        ...

    def close(self) -> None:
        """Release the storage."""
        ...
