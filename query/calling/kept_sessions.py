"""The sessions of callers with HTTP servers, kept so that any replica of the query service continues them.

The SDK cannot continue a session, so the guarded transport answers its handshake from what is kept here. An entry also
names the process that used the session last: that one ends it, once it is idle.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from query.kept import Kept, name_of, new_name
from shared.errors import CursorInvalid, CursorsUnavailable
from shared.upstream.session import HttpSession
from shared.upstream.target import HttpTarget
from shared.validation import first_problem

if TYPE_CHECKING:
    from mcp_types import InitializeResult

NOTED_EVERY_S = 30.0
"""Seconds between two notes that this process uses a session; much less than sessions stay idle."""
MAX_BYTES = 16 << 10
"""A larger entry is not kept: its server's handshake says more than it needs to."""
_DEAD_KEPT = 1_000

Start = Callable[[Coroutine[Any, Any, None]], object]
"""Begins work in the background."""

_log = structlog.get_logger()


class KeptSessions:
    """The sessions of all callers; `process` is a name of this process."""

    def __init__(self, kept: Kept, start: Start, process: str | None = None) -> None:
        self.kept, self.start, self.process = kept, start, process or new_name()
        # Sessions that this process gave up: it must not continue them while it removes their entries.
        self.dead: deque[str] = deque(maxlen=_DEAD_KEPT)

    async def last_replica(self, owner: str, digest: str) -> str | None:
        """Return the server with this catalogue that an owner used last, in any process."""
        entry = await self.attempt(lambda kept: kept.get(name_of(*_choice(owner, digest)), *_choice(owner, digest)))
        return entry.decode("utf-8", "replace") if entry is not None else None

    async def note_replica(self, owner: str, digest: str, server_id: str) -> None:
        """Note that an owner uses this server of those with this catalogue."""
        binding = _choice(owner, digest)
        await self.attempt(lambda kept: kept.put(server_id.encode(), *binding, name=name_of(*binding)))

    async def attempt(self, use: Callable[[Kept], Any]) -> Any:
        """Return the result of this use of the store, which may block; None where it has no such entry, or fails."""
        try:
            return await self.use(use)
        except CursorsUnavailable:
            return None

    async def use(self, use: Callable[[Kept], Any]) -> Any:
        """Return the result of this use of the store, which may block; None where it has no such entry.

        Raises:
            CursorsUnavailable: the store fails, which is logged.
        """
        try:
            return await anyio.to_thread.run_sync(use, self.kept)
        except CursorInvalid:
            return None
        except CursorsUnavailable as error:
            _log.warning("session_not_kept", reason=str(error))
            raise

    def of(self, server_id: str, owner: str, target: HttpTarget) -> KeptSession:
        """Return the session of an owner with a server, whether there is one or not."""
        return KeptSession(self, server_id, owner, target)


class _Entry(TypedDict):
    id: str
    initialized: dict[str, Any]
    process: str


_ENTRY = TypeAdapter(_Entry)


class KeptSession:
    """One caller's session with one server, as all replicas see it; an error of the store is logged."""

    def __init__(self, sessions: KeptSessions, server_id: str, owner: str, target: HttpTarget) -> None:
        self.is_kept = False
        self._sessions = sessions
        # another URL is another server, and other credentials may be those of another person
        headers = [text for header in sorted(target.headers.items()) for text in header]
        self._binding = (owner, "session", server_id, name_of(target.url, target.owner, target.identity, *headers))
        self._name = name_of(*self._binding)
        self._session: HttpSession | None = None
        self._noted_at = float("-inf")

    async def find(self) -> HttpSession | None:
        """Return the session if there is one that may be continued."""
        try:
            entry = await self._read()
        except CursorsUnavailable:
            return None
        if entry is None or entry["id"] in self._sessions.dead:
            return None
        self._session = HttpSession(entry["id"], entry["initialized"])
        await self._note()
        return self._session

    async def keep(self, session_id: str, result: InitializeResult) -> None:
        """Keep a new session."""
        shown = result.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"instructions"})
        self._session = HttpSession(session_id, shown)
        await self._note()

    def used(self) -> None:
        """Note, soon, that this process uses the session."""
        if self._session and anyio.current_time() >= self._noted_at + NOTED_EVERY_S:
            self._noted_at = anyio.current_time()
            self._sessions.start(self._note())

    def give_up(self) -> None:
        """Let this process never continue the session again."""
        self.is_kept = False
        if self._session:
            self._sessions.dead.append(self._session.session_id)

    async def end(self) -> bool:
        """Remove the entry and return True, unless another process used the session later, or may have."""
        try:
            entry = await self._read()
        except CursorsUnavailable:
            return False
        if entry is None or self._session is None or entry["id"] != self._session.session_id:
            return True  # another session has taken its place
        if entry["process"] != self._sessions.process:
            return False
        await self._sessions.attempt(lambda kept: kept.take(self._name, *self._binding))
        return True

    async def _note(self) -> None:
        assert self._session is not None
        self._noted_at = anyio.current_time()
        session = self._session
        entry = json.dumps(
            {"id": session.session_id, "initialized": session.initialized, "process": self._sessions.process}
        ).encode()
        if len(entry) > MAX_BYTES:
            return
        stored = await self._sessions.attempt(lambda kept: kept.put(entry, *self._binding, name=self._name))
        self.is_kept = stored is not None

    async def _read(self) -> _Entry | None:
        entry = await self._sessions.use(lambda kept: kept.get(self._name, *self._binding))
        if entry is None:
            return None
        try:
            return _ENTRY.validate_json(entry)
        except ValidationError as error:
            _log.error("record_unreadable", kind="session", record=self._name, reason=first_problem(error, "session"))
            return None


def _choice(owner: str, digest: str) -> tuple[str, str, str]:
    return owner, "replica", digest
