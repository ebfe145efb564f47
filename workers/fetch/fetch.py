"""Every tool a server offers: the complete walk over its pages, or an error that names the server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio

from shared.errors import Retryable

if TYPE_CHECKING:
    from shared.catalog import Listing
    from shared.upstream.dial import Target


# Whoever has a turn gives it back, but a list of ten thousand new tools takes minutes to embed.
LONGEST_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server may ask of us.

    `timeout_s` covers connecting and all pages. `max_tools` and `max_total_bytes` are over all pages;
    `max_message_bytes` is the size of one response, event or line; a tool over `max_tool_bytes` is left out. How many
    values either may hold is fixed in `shared.upstream.transport.json_size`.
    """

    timeout_s: float = 30.0
    # The largest servers seen offer hundreds of tools in pages of tens, a tool of some KiB; a hostile one has no end.
    max_tools: int = 10_000
    max_pages: int = 1_000
    max_message_bytes: int = 4 << 20
    max_tool_bytes: int = 2 << 20
    max_total_bytes: int = 64 << 20


def never_wait() -> bool:
    """Return True: a list may be as large as the limits allow, however many others are."""
    return True


async def fetch_tools(
    server_id: str, target: Target, limits: Limits, may_hold_much: Callable[[], bool] = never_wait
) -> Listing:
    """Return all tools the server offers now; a tool that cannot be used is among the rejected, with the reason.

    Never a partial list. The same definitions give the same wire JSON, whatever the order of their keys. Ends within
    `limits.timeout_s` and, for a child process that will not die, two seconds more. A list that grows large waits,
    and its time does not run, until `may_hold_much` says yes.

    Raises:
        ServerUnreachable: no connection, or it broke.
        ServerTimeout: no complete list within the time.
        ServerFailed: the server answered with an error of its own.
        ServerAuthRequired: it wants other credentials.
        ProtocolViolation: it does not speak MCP as it should.
        ListingTooLarge: a limit was hit.
        AddressForbidden: it tried to send us elsewhere.
    """
    from workers.fetch.session import list_tools  # noqa: PLC0415  # the SDK takes a second to import

    return await list_tools(server_id, target, limits, may_hold_much)


def fetch_tools_blocking(
    server_id: str,
    target: Target,
    limits: Limits,
    may_hold_much: Callable[[], bool] = never_wait,
    wait_at_most_s: float = LONGEST_WAIT_S,
) -> Listing:
    """Return what `fetch_tools` does, from a thread without an event loop.

    Raises:
        FetchInterrupted: `interrupt_fetches` was called, whatever the server did, or `may_hold_much` said no for
            `wait_at_most_s`.
    """
    return anyio.run(_interruptible, server_id, target, limits, _Wait(may_hold_much, wait_at_most_s))


class FetchInterrupted(Retryable):
    """Ended for a reason of our own; the server did nothing wrong, and its intent brings the look back."""


def interrupt_fetches() -> None:
    """End every blocking fetch that is under way in this process, so that a process may end while a server hangs."""
    with _changing:
        for interrupt in _running_fetches:
            interrupt()


# Of the process, since its end is: whoever asks for it knows nothing of the looks.
_running_fetches: set[Callable[[], None]] = set()
_changing = threading.Lock()


async def _interruptible(server_id: str, target: Target, limits: Limits, wait: _Wait) -> Listing:
    loop = asyncio.get_running_loop()
    scope = anyio.CancelScope()

    def interrupt() -> None:
        loop.call_soon_threadsafe(scope.cancel)

    with scope, _registered(interrupt):
        return await fetch_tools(server_id, target, limits, partial(wait.is_over, scope))
    reason = "its turn did not come" if wait.timed_out else "this process ends"
    raise FetchInterrupted(f"{server_id}: interrupted, since {reason}")


class _Wait:
    """The wait of a large list for its turn, and what ends it when it takes too long."""

    def __init__(self, may_hold_much: Callable[[], bool], at_most_s: float) -> None:
        self.timed_out = False
        self._may_hold_much = may_hold_much
        self._at_most_s = at_most_s
        self._began_s: float | None = None

    def is_over(self, scope: anyio.CancelScope) -> bool:
        """Return whether the turn has come; cancel the scope when the wait took too long."""
        if self._may_hold_much():
            self._began_s = None
            return True
        now = time.monotonic()
        self._began_s = now if self._began_s is None else self._began_s
        if now - self._began_s >= self._at_most_s:
            self.timed_out = True
            scope.cancel()
        return False


@contextmanager
def _registered(interrupt: Callable[[], None]) -> Generator[None]:
    with _changing:
        _running_fetches.add(interrupt)
    try:
        yield
    finally:
        with _changing:
            _running_fetches.discard(interrupt)


_INTERRUPT_EVERY_S = 0.05


def interrupt_fetches_after(seconds: float) -> None:
    """Let the fetches that are under way end by themselves for so long, and interrupt them from then on; returns now.

    A look that is interrupted is repeated by another worker, and its server is not blamed.
    """
    threading.Thread(target=_interrupt, args=(seconds,), name="worker's end", daemon=True).start()


def _interrupt(after_s: float) -> None:
    time.sleep(after_s)
    while True:  # again and again, until the process has ended: tasks that waited in the pool start when others end
        interrupt_fetches()
        time.sleep(_INTERRUPT_EVERY_S)
