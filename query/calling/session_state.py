"""State of a connection: the phase of its session, its calls, and its target."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING

import anyio

from shared.upstream.target import HttpTarget, Target

if TYPE_CHECKING:
    from mcp import Client

    from shared.errors import ServerError


class Phase(Enum):
    """A session is opening, then open, then over; or it failed before it was open."""

    OPENING = auto()
    OPEN = auto()
    OVER = auto()
    FAILED = auto()


class Session:
    """A session with a server: `client` while it is open, and `error` if it ended in one.

    `settled` is set when the session is open or failed, `ended` when it is over or failed.
    """

    def __init__(self) -> None:
        self.phase = Phase.OPENING
        self.client: Client | None = None
        self.error: ServerError | None = None
        self.settled = anyio.Event()
        self.ended = anyio.Event()

    @property
    def was_opened(self) -> bool:
        """Return whether the session is or was open."""
        return self.phase in {Phase.OPEN, Phase.OVER}

    def open(self, client: Client) -> None:
        """Mark the session as open."""
        self.phase, self.client = Phase.OPEN, client
        self.settled.set()

    def end(self, error: ServerError | None) -> None:
        """Mark the session as over or failed; interrupted calls raise `error`."""
        self.phase = Phase.OVER if self.was_opened else Phase.FAILED
        self.client, self.error = None, error
        self.settled.set()
        self.ended.set()


class CallCounter:
    """Counts calls in flight; `drained` is set when none is left and no more are accepted.

    `last_used` is the end of the last call, by the event loop's clock.
    """

    def __init__(self) -> None:
        self.in_flight = 0
        self.last_used = anyio.current_time()
        self.drained = anyio.Event()
        self._accepts_more = True

    @property
    def accepts_calls(self) -> bool:
        """Return whether a call may begin."""
        return self._accepts_more and not self.drained.is_set()

    @contextmanager
    def count_call(self) -> Generator[None]:
        """Count the block as a call in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self.last_used = anyio.current_time()
            self._set_drained_if_unused()

    def drain(self) -> None:
        """Accept no more calls."""
        self._accepts_more = False
        self._set_drained_if_unused()

    async def wait_until_idle(self, idle_s: float) -> None:
        """Return when the calls are drained; `idle_s` seconds without a call drain them."""
        while not self.drained.is_set():
            with anyio.move_on_after(idle_s):
                await self.drained.wait()
            if self.in_flight == 0 and anyio.current_time() >= self.last_used + idle_s:
                self.drained.set()

    def _set_drained_if_unused(self) -> None:
        if not self._accepts_more and self.in_flight == 0:
            self.drained.set()


MOVED_AFTER_S = 60.0
"""A name server may return a different part of a host's addresses each time; one missing for this long is gone."""


class TargetMatch:
    """The target of a connection, compared with targets that are resolved later."""

    def __init__(self, target: Target, moved_after_s: float = MOVED_AFTER_S) -> None:
        self.target = target
        self._moved_after_s = moved_after_s
        self._confirmed_at = anyio.current_time()

    def matches(self, resolved: Target) -> bool:
        """Return whether the resolved target has the same settings and shares, or shared lately, an address."""
        if not (isinstance(self.target, HttpTarget) and isinstance(resolved, HttpTarget)):
            return self.target == resolved
        if _connection_settings(self.target) != _connection_settings(resolved):
            return False
        if self.target.addresses == resolved.addresses or set(self.target.addresses) & set(resolved.addresses):
            self._confirmed_at = anyio.current_time()
        return anyio.current_time() < self._confirmed_at + self._moved_after_s


def _connection_settings(target: HttpTarget) -> object:
    return target.url, target.transport, dict(target.headers)
