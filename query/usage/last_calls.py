"""The last calls of this process, for the page; without arguments and results, as in the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

KEPT = 200


@dataclass(frozen=True, slots=True)
class LastCall:
    """A call at a time in seconds since the epoch. `server` is None where its tool was not found."""

    at_s: float
    caller: str
    server: str | None
    tool: str
    outcome: str
    took_ms: int


class LastCalls:
    """The last KEPT calls. Safe to use from several threads."""

    def __init__(self) -> None:
        self._calls: deque[LastCall] = deque(maxlen=KEPT)

    def add(self, call: LastCall) -> None:
        """Add a call that has ended."""
        self._calls.append(call)

    def of(self, caller: str | None) -> Iterator[LastCall]:
        """Yield the calls of a caller, or of all, the last one first."""
        return (call for call in reversed(tuple(self._calls)) if caller in (None, call.caller))
