"""Fetches all tools that a server offers: connects, walks over the pages, and disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
from mcp import Client
from mcp_types import Implementation

from shared.catalog import Listing
from shared.upstream.dial import open_transport
from shared.upstream.messages import LastEvent
from shared.upstream.session import FOREIGN_ERRORS, SessionState, timeout_error, to_server_error
from shared.upstream.target import StdioTarget, Target, secrets_of
from workers.fetch.interrupt import FetchInterrupted, interruptible
from workers.fetch.limits import Limits
from workers.fetch.raw_tools import RawToolInterceptor
from workers.fetch.session import PROBE, walk

# Slots are released, but a list of ten thousand new tools takes minutes to embed.
LONGEST_WAIT_S = 300.0

_CLOSE_WITHIN_S = 2.0
_CLIENT_INFO = Implementation(name="toolscale", version="1")


def always_free() -> bool:
    """Return True: a large list needs no slot."""
    return True


def no_turn() -> None:
    """Return at once: there is no turn to end."""


def fetch_tools_blocking(
    server_id: str,
    target: Target,
    limits: Limits,
    try_acquire: Callable[[], bool] = always_free,
    wait_at_most_s: float = LONGEST_WAIT_S,
    end_turn: Callable[[], None] = no_turn,
    mode: str = PROBE,
) -> Listing:
    """Return all tools that the server offers now, from a thread without an event loop; rejected ones have a reason.

    Never a partial list. Ends within the time of `limits`, plus two seconds for a child process that does not exit, or
    twelve if it has sent no message.
    A list that grows large waits until `try_acquire` returns True; this wait does not count.
    `end_turn` is called at the first message of a child process, or when its start takes longer than a listing may.
    `mode` is `PROBE`, or the mode that `connect_mode` returned for the server's last listing.

    Raises:
        ServerUnreachable: no connection, or it broke.
        ServerTimeout: no complete list within the time.
        ServerFailed: the server returned an error.
        ServerAuthRequired: the server requires other credentials.
        ProtocolViolation: the server violates the protocol.
        ListingTooLarge: the list exceeds a limit.
        AddressForbidden: the server redirected to an address that is not allowed.
        FetchInterrupted: `interrupt_fetches` was called, or no slot became free within `wait_at_most_s`.
    """
    attempt = _Attempt(server_id, target, limits, end_turn, mode)
    return anyio.run(_fetch, attempt, _SlotWait(try_acquire, wait_at_most_s))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One attempt to list a server's tools."""

    server_id: str
    target: Target
    limits: Limits
    end_turn: Callable[[], None]
    mode: str


async def _fetch(attempt: _Attempt, wait: _SlotWait) -> Listing:
    loop, scope = asyncio.get_running_loop(), anyio.CancelScope()
    with scope, interruptible(lambda: loop.call_soon_threadsafe(scope.cancel)):
        loop.call_later(attempt.limits.timeout_s, attempt.end_turn)
        return await _list_tools(attempt, partial(wait.is_over, scope))
    reason = "no slot for a large list became free" if wait.timed_out else "this process ends"
    raise FetchInterrupted(f"{attempt.server_id}: interrupted, since {reason}")


async def _list_tools(attempt: _Attempt, has_slot: Callable[[], bool]) -> Listing:
    target, limits = attempt.target, attempt.limits
    time_s = max(limits.timeout_s, limits.start_timeout_s) if isinstance(target, StdioTarget) else limits.timeout_s
    scope = anyio.CancelScope(deadline=anyio.current_time() + time_s)

    def on_started() -> None:
        scope.deadline = anyio.current_time() + limits.timeout_s
        attempt.end_turn()

    state = SessionState(
        attempt.server_id,
        scope,
        secrets_of(target),
        may_hold_large=has_slot,
        on_started=on_started,
        last_event=LastEvent(limits.max_message_bytes),
    )
    listing: Listing | None = None
    try:
        with scope:
            transport = open_transport(target, limits.max_message_bytes, limits.timeout_s, state)
            interceptor = RawToolInterceptor(transport, state)
            async with Client(interceptor, mode=attempt.mode, cache=None, client_info=_CLIENT_INFO) as client:
                listing = await walk(client, interceptor, limits, state)
                # the list is complete: closing may be short
                scope.deadline = min(scope.deadline, anyio.current_time() + _CLOSE_WITHIN_S)
    except FOREIGN_ERRORS as error:
        if listing is None:
            raise to_server_error(state, error) or error from error
    if listing is None:
        raise timeout_error(state, limits.timeout_s if state.is_started else time_s)
    return listing


class _SlotWait:
    """The wait of a large list for a slot, and its time limit."""

    def __init__(self, try_acquire: Callable[[], bool], at_most_s: float) -> None:
        self.timed_out = False
        self._try_acquire = try_acquire
        self._at_most_s = at_most_s
        self._began_s: float | None = None

    def is_over(self, scope: anyio.CancelScope) -> bool:
        """Return whether the list has a slot; cancel the scope when the wait took too long."""
        if self._try_acquire():
            self._began_s = None
            return True
        now = time.monotonic()
        self._began_s = now if self._began_s is None else self._began_s
        if now - self._began_s >= self._at_most_s:
            self.timed_out = True
            scope.cancel()
        return False
