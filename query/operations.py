"""What an operator records or copies: approvals, reconciliations, events, dead letters and backups.

The service does it for the command line where the stores are files. Where they are servers, the command line does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from query import definitions
from query.backup import Kind, Stores, documents_of, parsed, restored
from shared.errors import EventInvalid, IntentsUnavailable, ServerNotRunning, ServerUnknown
from shared.events import ServerChanged, ServerEvent, ServerRef, parse_event

if TYPE_CHECKING:
    from shared.intents.intent import Intent
    from shared.intents.intents import Intents

SOURCE = "toolscale/cli"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations on the stores of an installation; every result is JSON.

    `emit` records events of ours together, and `accept` one from outside; both request the servers' reconciliations.
    Every method raises IntentsUnavailable when the intent store does not answer.
    """

    intents: Intents
    emit: Callable[[Sequence[ServerEvent]], Iterable[Intent | EventInvalid | IntentsUnavailable]]
    accept: Callable[[str], Intent]
    stores: Callable[[], AbstractContextManager[Stores]]

    def record(self, event: str | Object) -> Object:
        """Record a CloudEvent of a producer, as JSON text, or of ours, as an object; return the intent after it.

        Raises:
            EventInvalid: it was rejected; a text was added to the dead letters. A person corrects a command at once.
        """
        if isinstance(event, str):
            return self.accept(event).model_dump(mode="json")
        (recorded,) = self._emitted([parse_event(event).model_copy(update={"source": SOURCE})])
        return recorded

    def resync(self, server_ids: Sequence[str] = ()) -> list[Object]:
        """Request a reconciliation of these servers, or of all that should run; return each intent after that.

        Raises:
            ServerUnknown: a server was never announced; nothing is recorded.
            ServerNotRunning: a server is stopped; nothing is recorded.
        """
        known = {intent.server_id: intent for intent in self.intents.intents()}
        for server_id in server_ids:
            if server_id not in known:
                raise ServerUnknown.near(server_id, known)
            if known[server_id].status != "running":
                reason = "it is stopped; announce it with `toolscale emit up`, or in the mcp.json"
                raise ServerNotRunning(server_id, reason)
        wanted = server_ids or [server_id for server_id, intent in known.items() if intent.status == "running"]
        return self._resynced(wanted)

    def intents_of(self, server_ids: Sequence[str] = ()) -> list[Object]:
        """Return the intents of these servers, or of all; a server without one is left out."""
        found = self.intents.existing(server_ids).values() if server_ids else self.intents.intents()
        return [intent.model_dump(mode="json") for intent in found]

    def changes(self, server_id: str, tools: Sequence[str] = ()) -> Object:
        """Return the changed definitions of a server, or of these tools.

        Raises:
            ServerUnknown, ToolNotFound: the server was never announced, or a tool has no changed definition.
        """
        self._known(server_id)
        return definitions.changes(self.intents, server_id, tools)

    def approve(self, server_id: str, tools: Sequence[str] = ()) -> Object:
        """Accept the changed definitions of a server, or of these tools, and request its reconciliation if it runs.

        Raises:
            ServerUnknown, ToolNotFound: as for `changes`; nothing is accepted.
        """
        intent = self._known(server_id)
        accepted = definitions.accept(self.intents, server_id, tools)
        is_requested = bool(accepted) and intent.status == "running"
        request = self._resynced([server_id])[0] if is_requested else None
        return {"server_id": server_id, "accepted": list(accepted), "request": request}

    def dead_letters(self, limit: int) -> list[Object]:
        """Return the latest rejected events and messages, newest first."""
        return [letter.model_dump(mode="json") for letter in self.intents.dead_letters(limit)]

    def backup(self, kind: Kind) -> list[Object]:
        """Return the documents of a kind.

        Raises:
            IndexUnavailable, HistoryUnavailable: a store does not answer.
        """
        with self.stores() as stores:
            return list(documents_of(kind, stores))

    def restore(self, kind: Kind, documents: Sequence[Object]) -> Object:
        """Add the missing documents of a kind, and return the numbers of added and of present ones.

        Raises:
            ValidationError: a document is invalid; nothing is restored.
            IndexUnavailable, HistoryUnavailable: a store stopped answering; a part is restored.
        """
        wanted = [parsed(kind, document) for document in documents]
        with self.stores() as stores:
            return restored(kind, wanted, stores)._asdict()

    def _resynced(self, server_ids: Sequence[str]) -> list[Object]:
        return self._emitted([ServerChanged(source=SOURCE, data=ServerRef(server_id=each)) for each in server_ids])

    def _emitted(self, events: Sequence[ServerEvent]) -> list[Object]:
        results = list(self.emit(events))
        for result in results:
            if isinstance(result, Exception):
                raise result
        return [result.model_dump(mode="json") for result in results if not isinstance(result, Exception)]

    def _known(self, server_id: str) -> Intent:
        intent = self.intents.intent(server_id)
        if intent is None:
            raise ServerUnknown.near(server_id, (each.server_id for each in self.intents.intents()))
        return intent
