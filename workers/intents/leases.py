"""Hold a server while its tools are written, and make good what was written after it was held no more."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import structlog

from shared.errors import EventInvalid, LeaseHeld
from shared.events import ServerChanged, ServerRef

if TYPE_CHECKING:
    from workers.intents.store import IntentStore, Lease

SOURCE = "toolscale/lease"
"""Said to have asked for a look after a run that lost its lease."""


@contextmanager
def held(server_id: str, intents: IntentStore) -> Generator[Lease]:
    """Hold the server for this run; one that loses it on the way has the next sweep ask for another look.

    Check and write are two steps, so whoever was suspended between them has written late, and perhaps last.

    Raises:
        LeaseHeld: another run holds it, or may have held it meanwhile.
    """
    with intents.lease(server_id) as lease:
        try:
            yield lease
        except LeaseHeld:
            with suppress(EventInvalid):  # nobody knows the server any more
                intents.record(ServerChanged(source=SOURCE, data=ServerRef(server_id=server_id)), due_in_s=0)
            structlog.get_logger().warning("lease_lost", server=server_id)
            raise
