"""Hold a server's lease while its tools are written, and repair late writes after a lost lease."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import structlog

from shared.errors import EventInvalid, LeaseHeld
from workers.intents.requests import request_reconcile

if TYPE_CHECKING:
    from workers.intents.store import IntentStore, Lease

SOURCE = "toolscale/lease"
"""The source of the event that requests a reconciliation after a lost lease."""


@contextmanager
def held(server_id: str, intents: IntentStore) -> Generator[Lease]:
    """Hold the server's lease for this run; after a lost lease, the next sweep requests another reconciliation.

    Check and write are two steps. A process that was suspended between them has written late, and perhaps last.

    Raises:
        LeaseHeld: another run holds the lease, or this run lost it.
    """
    with intents.lease(server_id) as lease:
        try:
            yield lease
        except LeaseHeld:
            with suppress(EventInvalid):  # the server has no intent any more
                request_reconcile(server_id, intents, SOURCE)
            structlog.get_logger().warning("lease_lost", server=server_id)
            raise
