"""How far a connection is: that of its session, and that of the calls which use it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING

import anyio

from shared.upstream.dial import HttpTarget, Target

if TYPE_CHECKING:
    from mcp import Client

    from shared.errors import ServerError


class Phase(Enum):
    """A session is opening, then open, then over; or it failed, and never was open."""

    OPENING = auto()
    OPEN = auto()
    OVER = auto()
    FAILED = auto()


class Session:
    """A session with a server: `client` while it is open, and `error` where it ended in one.

    `settled` comes when it is open or never will be, `ended` when it is over or failed.
    """

    def __init__(self) -> None:
        self.phase = Phase.OPENING
        self.client: Client | None = None
        self.error: ServerError | None = None
        self.settled = anyio.Event()
        self.ended = anyio.Event()

    @property
    def was_opened(self) -> bool:
        """Return whether it is open, or was."""
        return self.phase in {Phase.OPEN, Phase.OVER}

    def open(self, client: Client) -> None:
        """Note that it is established."""
        self.phase, self.client = Phase.OPEN, client
        self.settled.set()

    def end(self, error: ServerError | None) -> None:
        """Note that it is left or lost, and what interrupted calls are told."""
        self.phase = Phase.OVER if self.was_opened else Phase.FAILED
        self.client, self.error = None, error
        self.settled.set()
        self.ended.set()


class CallCounter:
    """The calls in flight, and whether more may come: once none may and none are left, `over` comes.

    `last_used` is when the last one ended, by the clock of the event loop.
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
        """Let the calls in flight be the last."""
        self._accepts_more = False
        self._set_drained_if_unused()

    async def wait_until_idle(self, idle_s: float) -> None:
        """Return when it is over, or when no call was in flight for so many seconds, which ends it."""
        while not self.drained.is_set():
            with anyio.move_on_after(idle_s):
                await self.drained.wait()
            if self.in_flight == 0 and anyio.current_time() >= self.last_used + idle_s:
                self.drained.set()

    def _set_drained_if_unused(self) -> None:
        if not self._accepts_more and self.in_flight == 0:
            self.drained.set()


MOVED_AFTER_S = 60.0
"""Name servers that know many addresses name a few of them, others each time; gone is one that is not named so long."""


class TargetMatch:
    """The target of a connection, as it is confirmed or not by those that are found later."""

    def __init__(self, target: Target, moved_after_s: float = MOVED_AFTER_S) -> None:
        self.target = target
        self._moved_after_s = moved_after_s
        self._confirmed_at = anyio.current_time()

    def matches(self, resolved: Target) -> bool:
        """Return whether what was found now leads to the same place in the same way, some other addresses apart."""
        if not (isinstance(self.target, HttpTarget) and isinstance(resolved, HttpTarget)):
            return self.target == resolved
        if _connection_settings(self.target) != _connection_settings(resolved):
            return False
        if self.target.addresses == resolved.addresses or set(self.target.addresses) & set(resolved.addresses):
            self._confirmed_at = anyio.current_time()
        return anyio.current_time() < self._confirmed_at + self._moved_after_s


def _connection_settings(target: HttpTarget) -> object:
    return target.url, target.transport, dict(target.headers)
