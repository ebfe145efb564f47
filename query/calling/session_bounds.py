"""The bounds on the sessions of callers with servers."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import anyio

from query.calling.limits import CallLimits
from shared.errors import CallsExhausted
from shared.upstream.auth import CLIENT_OWNER, PROJECT_OWNER

MOST_OF_SERVER = 512
"""Sessions of a server over HTTP, whose callers need no open connection between two calls."""
MOST_PROCESSES_OF_SERVER = 16
"""Processes of a stateful stdio server."""
MOST_SESSIONS = 4_096
"""Sessions of all servers."""
PROCESSES_SHARE = 2
"""One of these shares of the connections may be processes with the state of a caller, which nothing can take over."""


class SessionKey(NamedTuple):
    """A server, and the caller to whom a session with it belongs; SERVICE: callers share it."""

    server_id: str
    owner: str

    @property
    def is_of_caller(self) -> bool:
        """Return whether the session may have the state of a caller; a process of a project need not have any."""
        return bool(self.owner) and not self.owner.startswith(PROJECT_OWNER)

    @property
    def is_private(self) -> bool:
        """Return whether others may not see what a server has in the session alone; callers without tokens are one."""
        return self.is_of_caller and not self.owner.startswith(CLIENT_OWNER)


class SessionBounds:
    """The sessions of callers that this process has opened or continued, until they are idle for `limits.idle_s`."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._used: dict[SessionKey, float] = {}
        self._processes: set[SessionKey] = set()

    def admit(self, key: SessionKey, open_keys: Collection[SessionKey], *, is_process: bool) -> None:
        """Count a session that is to be opened or continued.

        Raises:
            CallsExhausted: as many sessions exist as may.
        """
        idle_since = anyio.current_time() - self._limits.idle_s
        for other in [each for each, used in self._used.items() if used < idle_since and each not in open_keys]:
            self.ended(other)
        if key not in self._used:
            self._check(key, is_process=is_process)
        self.used(key)
        if is_process:
            self._processes.add(key)

    def used(self, key: SessionKey) -> None:
        """Note that a session is in use."""
        self._used[key] = anyio.current_time()

    def ended(self, key: SessionKey) -> None:
        """Count a session no longer."""
        self._used.pop(key, None)
        self._processes.discard(key)

    def _check(self, key: SessionKey, *, is_process: bool) -> None:
        of_server = sum(other.server_id == key.server_id for other in self._used)
        most_of_server = MOST_PROCESSES_OF_SERVER if is_process else MOST_OF_SERVER
        most_processes = max(1, self._limits.max_connections // PROCESSES_SHARE)
        if of_server >= most_of_server:
            reason = f"{of_server} callers have a session with {key.server_id}, as many as may"
        elif is_process and len(self._processes) >= most_processes:
            reason = f"{most_processes} processes keep the state of a caller, as many as may"
        elif len(self._used) >= MOST_SESSIONS:
            reason = f"{MOST_SESSIONS} sessions of callers with servers exist, as many as may"
        else:
            return
        raise CallsExhausted(f"{reason}; a session ends {self._limits.idle_s / 60:.3g} minutes after its last call")
