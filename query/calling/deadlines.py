"""The time limits of one attempt of a call."""

from __future__ import annotations

import anyio


class CallDeadline:
    """Limits the time to connect, then the time to answer; both are times of the event loop's clock.

    The attempt runs within `scope`. A reconnection is limited by `connect_by` again.
    """

    def __init__(self, answer_by: float, connect_by: float | None = None) -> None:
        self.answer_by = answer_by
        self.connect_by = answer_by if connect_by is None else connect_by
        self.scope = anyio.CancelScope()
        self.connecting()

    def connecting(self) -> None:
        """Note that the attempt waits for a connection."""
        self.is_connected = False
        self.scope.deadline = self.connect_by

    def connected(self) -> None:
        """Note that the call may be sent from now on."""
        self.is_connected = True
        self.scope.deadline = self.answer_by
