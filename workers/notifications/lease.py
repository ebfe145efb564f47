"""The lease of the process that listens; the others wait for it."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import structlog

from shared.errors import LeaseHeld
from shared.intents.intents import Intents

if TYPE_CHECKING:
    from shared.intents.storage import Lease

# No server has an id with a space.
NAME = "the notifications"


class ListeningLease(ExitStack):
    """The right to listen, which `is_held` takes once it is free, and which ends with the block."""

    def __init__(self, intents: Intents) -> None:
        super().__init__()
        self._intents = intents
        self._lease: Lease | None = None
        self._was_held: bool | None = None

    def is_held(self) -> bool:
        """Return whether this process has the lease now; take it if it is free.

        Raises:
            IntentsUnavailable: the intents do not answer.
        """
        try:
            if self._lease:
                self._lease.assert_held()
        except LeaseHeld:  # it expired: the process was suspended, or Redis did not answer for longer
            self._lease = None
            self.close()
        with suppress(LeaseHeld):
            self._lease = self._lease or self.enter_context(self._intents.lease(NAME))
        is_held = self._lease is not None
        if is_held != self._was_held:
            self._was_held = is_held
            structlog.get_logger().info("notifications_active" if is_held else "notifications_standby")
        return is_held
