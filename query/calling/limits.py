"""Limits over all calls: calls in flight per caller, and large results in memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

from shared.errors import CallsExhausted, Delivery
from shared.upstream.session import HttpExchange, current_exchange

if TYPE_CHECKING:
    from query.calling.connection import CallDeadline
    from query.calling.dialogue import Dialogue

# A result of 4 MiB arrives within this time over any usual network.
TURN_S = 2.0
# Waiting results ask again every 50 ms.
_WAITING_S = 0.5


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits on calls and connections; `timeout_s` includes connecting.

    A child process may take `start_timeout_s` to start, if that is longer: it may install packages.
    `per_caller` limits the calls in flight of one caller, `large_at_once` the large results in memory of all callers.
    """

    timeout_s: float = 60.0
    start_timeout_s: float = 0.0
    # A larger result would not fit the context window of any client.
    max_message_bytes: int = 4 << 20
    max_connections: int = 64
    # Longer than a client pauses between two calls; an idle stdio server costs a process.
    idle_s: float = 300.0
    per_caller: int = 64
    # Each takes up to 60 MiB while it is parsed.
    large_at_once: int = 4


class Admission:
    """Admits calls within a limit per caller, and large results within a limit for all callers.

    A large result that is read for longer than `TURN_S` loses its slot to one that waits. The slots of one owner share
    half of the limit while those of others wait.
    """

    def __init__(self, per_caller: int, large_at_once: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._per_caller = per_caller
        self._large_at_once = large_at_once
        self._clock_s = clock_s
        self._in_flight: Counter[str] = Counter()
        # When each slot was acquired; infinite once its result is complete.
        self._held: dict[ResultSlot, float] = {}
        # When each owner was last refused a slot.
        self._refused: dict[str, float] = {}

    @contextmanager
    def admitted(self, caller: str) -> Generator[ResultSlot]:
        """Count the block as a call of this caller and yield the slot of its result, which closes with the block.

        Raises:
            CallsExhausted: the caller has as many calls in flight as the limit allows.
        """
        if self._in_flight[caller] >= self._per_caller:
            limit = f"{caller} has {self._per_caller} calls in flight, as many as the limit per caller allows"
            raise CallsExhausted(f"{limit}; wait until a call has ended, or call again in a second")
        self._in_flight[caller] += 1
        slot = self.slot(caller)
        try:
            yield slot
        finally:
            slot.close()
            self._in_flight[caller] -= 1
            if not self._in_flight[caller]:
                del self._in_flight[caller]

    def slot(self, owner: str = "") -> ResultSlot:
        """Return a slot that is not acquired yet."""
        return ResultSlot(self, owner)

    def no_slot(self) -> CallsExhausted:
        """Return the error for a call that timed out before it could acquire its slot."""
        limit = f"{self._large_at_once} large results are being processed, as many as the limit allows"
        return CallsExhausted(
            f"{limit}; request less data, or call again in a few seconds. The server may have executed this call",
            Delivery.UNKNOWN,
        )

    def acquire(self, slot: ResultSlot) -> bool:
        """Return whether the slot is held now."""
        if slot in self._held:
            return True
        now = self._clock_s()
        self._refused = {owner: at for owner, at in self._refused.items() if now - at < _WAITING_S}
        if self._has_its_share(slot.owner) or not self._has_room(now):
            self._refused[slot.owner] = now
            return False
        self._held[slot] = now
        return True

    def settle(self, slot: ResultSlot, successor: ResultSlot | None) -> None:
        """Hold the successor in place of the slot, if that is held, until it is released."""
        if self.release(slot) and successor is not None:
            self._held[successor] = float("inf")

    def release(self, slot: ResultSlot) -> bool:
        """Return whether the slot was held; it no longer is."""
        return self._held.pop(slot, None) is not None

    def _has_its_share(self, owner: str) -> bool:
        held = sum(slot.owner == owner for slot in self._held)
        return held >= max(1, self._large_at_once // 2) and bool(self._refused.keys() - {owner})

    def _has_room(self, now: float) -> bool:
        """Return whether a slot is free; take back the one that is held for too long."""
        if len(self._held) < self._large_at_once:
            return True
        oldest = min(self._held, key=self._held.__getitem__)
        if now - self._held[oldest] < TURN_S:
            return False
        del self._held[oldest]
        return True


class ResultSlot:
    """Permission to keep one large result in memory."""

    def __init__(self, admission: Admission, owner: str) -> None:
        self.owner = owner
        self.is_waiting = False
        self._admission = admission
        self._is_closed = False

    def try_acquire(self) -> bool:
        """Return whether a large result may be read; after `close`, always: its call keeps no result."""
        self.is_waiting = not (self._is_closed or self._admission.acquire(self))
        return not self.is_waiting

    def hand_over(self, successor: ResultSlot) -> None:
        """Give the permission, if it is held, to the slot of the call that has received the whole result."""
        self._admission.settle(self, None if successor._is_closed else successor)

    def settle(self) -> None:
        """Keep the slot, if it is held, until it is released: the result is complete."""
        self._admission.settle(self, self)

    def release(self) -> bool:
        """Return the slot, and whether it was held."""
        return self._admission.release(self)

    def close(self) -> None:
        """Release the slot and never hold it again."""
        self._is_closed = True
        self.release()


@dataclass(slots=True, kw_only=True)
class CallExchange(HttpExchange):
    """The exchange of one call, with the slot for its result.

    `headers` repeat arguments of the call over HTTP. `dialogue` asks the caller's client, while `deadline` waits.
    `is_repeatable`: a second call does no further harm.
    """

    slot: ResultSlot
    headers: dict[str, str] = field(default_factory=dict[str, str])
    dialogue: Dialogue | None = None
    deadline: CallDeadline | None = None
    is_repeatable: bool = False


class MessageSlots:
    """The slots for the large messages of one connection.

    An HTTP response belongs to one call and acquires that call's slot. A stream that calls share acquires the
    connection's own slot; after parsing, the answered call acquires its slot instead.
    """

    def __init__(self, own: ResultSlot) -> None:
        self.own = own
        self._by_request: WeakValueDictionary[str | int, ResultSlot] = WeakValueDictionary()

    def try_acquire(self) -> bool:
        """Return whether the message that is being read may be large."""
        return (_slot_of_call() or self.own).try_acquire()

    def on_sent(self, message: object) -> None:
        """Remember the slot of the call that sends this request."""
        slot = _slot_of_call()
        if slot and isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest):
            self._by_request[message.message.id] = slot

    def on_received(self, message: object) -> None:
        """Move a large message from the connection's own slot to that of the call it answers, which then keeps it."""
        slot: ResultSlot | None = None
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            slot = self._by_request.get(message.message.id)
        if slot is None:
            self.own.release()
            return
        slot.settle()
        self.own.hand_over(slot)


def _slot_of_call() -> ResultSlot | None:
    exchange = current_exchange.get()
    return exchange.slot if isinstance(exchange, CallExchange) else None
