"""Large messages, from when they come until it is known which call they answer.

Over streamable HTTP an answer comes as that of its request. A child process and the older sse transport have one
stream for all answers, and whose one is, is known only once it was read.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

from query.calling.admission import Turn, current_turn


class Unclaimed:
    """The turn that a connection's stream takes for what it reads, and passes on to the call that it is for."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        # a call that has ended, answered or not, is nobody's any more
        self._of_requests: WeakValueDictionary[str | int, Turn] = WeakValueDictionary()

    @property
    def awaits_a_turn(self) -> bool:
        """Return whether the stream waits, and with it all that comes after."""
        return self._turn.is_awaited

    def may_hold_much(self) -> bool:
        """Return whether what comes now may be large; asked in the context of what receives it."""
        return (current_turn.get() or self._turn).try_take()

    def note_sent(self, message: object) -> None:
        """Note whose request this is; called in the context of who sends it."""
        turn = current_turn.get()
        if turn and isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest):
            self._of_requests[message.message.id] = turn

    def claim(self, message: object) -> None:
        """Give what the stream took to the call that this message answers."""
        self._turn.pass_on(self._claimant(message))

    def _claimant(self, message: object) -> Turn | None:
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            return self._of_requests.pop(message.message.id, None)
        return None
