"""The owner of a running server: only its events change the server's announcement and status.

The source of a recorded event names its sender: `Emitter.accept` rejects events from outside with a reserved source.
The intent and the server's record keep the source, so every process that accepts events knows the owner.
"""

from __future__ import annotations

from shared.catalog import OPERATOR_SOURCE, owner_of
from shared.errors import EventInvalid
from shared.events import ServerChanged, ServerDown, ServerEvent
from workers.intents.store import Intent


def check_owner(before: Intent | None, event: ServerEvent) -> None:
    """Reject an event that may not change this server; a `changed` event only requests a reconciliation.

    A running server belongs to the sender that announced it, until a `down` event. The operator's file may change every
    server, and senders without a token of their own may take down every server but those of the file.

    Raises:
        EventInvalid: the server belongs to another sender.
    """
    if before is None or before.status == "stopped" or isinstance(event, ServerChanged):
        return
    owner, sender = owner_of(before.source), owner_of(event.source)
    if sender in (owner, OPERATOR_SOURCE):
        return
    if owner == OPERATOR_SOURCE:
        reason = f"the operator's mcp.json names the server {before.server_id!r}, so only that file changes it"
        raise EventInvalid("data.server_id", reason)
    if sender is not None or not isinstance(event, ServerDown):
        reason = f"the server {before.server_id!r} belongs to another producer until its `down` event"
        raise EventInvalid("data.server_id", reason)
