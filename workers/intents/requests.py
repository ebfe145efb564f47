"""Requests for reconciliations from the workers themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.events import ServerChanged, ServerRef

if TYPE_CHECKING:
    from workers.intents.store import IntentStore


def request_reconcile(server_id: str, intents: IntentStore, source: str) -> None:
    """Request a reconciliation, which the next sweep sends.

    Raises:
        EventInvalid: the server was never announced.
    """
    intents.record(ServerChanged(source=source, data=ServerRef(server_id=server_id)), due_in_s=0)
