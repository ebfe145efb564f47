"""A copy of the running servers, which follows the changes of the intents."""

from __future__ import annotations

import time
from collections.abc import ItemsView
from dataclasses import dataclass

from shared.catalog import Endpoint
from shared.intents.intent import Intent
from shared.intents.intents import Intents

# Finds the changes by a process of an earlier release, which stores no change.
REREAD_S = 300.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server that does not kill its workers; `is_listed`: its last reconciliation was successful."""

    endpoint: Endpoint
    is_listed: bool


class RunningServers:
    """The running servers by id, as of the last `refresh`."""

    def __init__(self, intents: Intents, reread_s: float = REREAD_S) -> None:
        self._intents = intents
        self._reread_s = reread_s
        self._reread_at = 0.0
        self._position = ""
        self._servers: dict[str, RunningServer] = {}

    def items(self) -> ItemsView[str, RunningServer]:
        """Return all ids and servers."""
        return self._servers.items()

    def refresh(self) -> bool:
        """Read the changed intents, and all every `reread_s` seconds; return whether a running server changed.

        Raises:
            IntentsUnavailable: the store does not answer; the next call reads the same changes.
        """
        now = time.monotonic()
        changes = self._intents.changes(self._position if now < self._reread_at else "")
        found = {server_id: _running(intent) for server_id, intent in changes.intents.items()}
        if changes.is_complete:
            self._reread_at = now + self._reread_s
            found = dict.fromkeys(self._servers) | found
        self._position = changes.position
        return any([self._put(server_id, server) for server_id, server in found.items()])

    def _put(self, server_id: str, server: RunningServer | None) -> bool:
        """Keep the server, or forget it if None; return whether that is a change."""
        before = self._servers.pop(server_id, None)
        if server:
            self._servers[server_id] = server
        return before != server


def kills_workers(intent: Intent) -> bool:
    """Return whether reconciliations of the server repeatedly killed their workers."""
    return intent.parked or intent.is_suspect


def _running(intent: Intent | None) -> RunningServer | None:
    if intent is None or intent.status != "running" or kills_workers(intent):
        return None
    return RunningServer(intent.announcement.endpoint, intent.committed > 0 and not intent.failures)
