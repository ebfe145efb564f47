"""Which calls may begin, and which may hold a large result."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from shared.errors import CallsExhausted
from shared.slots import LargePayloadSlots

current_turn: ContextVar[Turn | None] = ContextVar("current_turn", default=None)
"""The turn of the call that what is sent now belongs to; the SDK sends a request in the context of who made it."""


class Admission:
    """How many calls a caller may have under way, and how many large results may be in hand at a time.

    Safe to use from several threads.
    """

    def __init__(self, per_caller: int, large_at_once: int) -> None:
        self._per_caller = per_caller
        self._large_at_once = large_at_once
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._turns = LargePayloadSlots(large_at_once)

    @contextmanager
    def admitted(self, caller: str) -> Generator[Turn]:
        """Count the block as a call of this caller's, and yield its turn, which is over with the block.

        Raises:
            CallsExhausted: the caller has as many calls under way as it may.
        """
        self._begin(caller)
        turn = self.turn()
        try:
            yield turn
        finally:
            turn.end()
            self._end(caller)

    def turn(self) -> Turn:
        """Return a turn that nobody has yet."""
        return Turn(self._turns)

    def no_turn(self) -> CallsExhausted:
        """Return the error for a call that waited for its turn in vain."""
        held = f"{self._large_at_once} large results are in hand, as many as may be at a time"
        return CallsExhausted(
            f"{held}; ask for less, or call again in a few seconds. The call may have been carried out"
        )

    def _begin(self, caller: str) -> None:
        with self._lock:
            if self._under_way[caller] >= self._per_caller:
                reason = f"{caller} has {self._per_caller} calls under way, as many as a caller may have"
                raise CallsExhausted(f"{reason}; wait until one has ended, or call again in a second")
            self._under_way[caller] += 1

    def _end(self, caller: str) -> None:
        with self._lock:
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]


class Turn:
    """The right of one to hold something large, taken when it is needed."""

    def __init__(self, turns: LargePayloadSlots) -> None:
        self.is_awaited = False
        self._turns = turns
        self._is_over = False
        self._ending = threading.Lock()

    def try_take(self) -> bool:
        """Return whether something large may be held now. After the end it may, since nobody keeps it."""
        with self._ending:
            self.is_awaited = not (self._is_over or self._turns.try_acquire(self))
            return not self.is_awaited

    def pass_on(self, to: Turn | None) -> None:
        """Give the turn, if it was taken, to the one whose what came is, or back where it is nobody's."""
        if to is None:
            self._turns.release(self)
            return
        with to._ending:  # of its own kind
            if to._is_over:
                self._turns.release(self)
            else:
                self._turns.transfer(self, to)

    def end(self) -> None:
        """Give the turn back for good."""
        with self._ending:
            self._is_over = True
            self._turns.release(self)
