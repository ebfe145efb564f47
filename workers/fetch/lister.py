"""Lists servers, and remembers how each was listed last."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shared.catalog import Listing, ToolDefinition
from shared.errors import ProtocolViolation
from shared.service.process import full_environment
from shared.upstream.dial import dialler_for
from shared.upstream.opening import HANDSHAKE, PROBE
from shared.upstream.replay import Recorder, Recording
from shared.upstream.target import STDIO_START_TIMEOUT_S, HttpTarget, StdioTarget, Target
from workers.fetch.definitions import Limits
from workers.fetch.session import SharedSession, answers_as_recorded, connect_mode, fetch_tools_blocking

if TYPE_CHECKING:
    from shared.events import ServerAnnouncement
    from shared.settings import Settings
    from workers.fetch.turns import LargePayloadSlots, StartTurns

Share = Callable[["ServerAnnouncement", bool], SharedSession]
"""Returns the session of calls with a stdio server; the flag is whether it needs the handshake of earlier protocols."""

# A probe that failed by chance makes a server of both protocols look like one of an earlier protocol.
PROBE_AFTER_S = 3600.0
# A server rejects a protocol quickly. A slower error may have other reasons, and would double the time of a listing.
REJECTED_WITHIN_S = 5.0
# A lister that holds so many servers forgets them all, since ids may come and go.
MOST_REMEMBERED = 100_000
# Recorded sessions with their compressed definitions: those of some 4,000 servers of 20 tools.
MOST_RECORDED_BYTES = 32 << 20
# The requests of a session in memory.
SESSION_BYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A session, and the list that it gave: without its tools, and the compressed definitions of these.

    A definition takes a fifth of its bytes, and has to be read again only once an interval.
    """

    session: Recording
    head: Listing
    definitions: bytes

    @staticmethod
    def of(session: Recording, listing: Listing) -> _Recorded:
        """Return the session with its list."""
        wires = "\n".join(tool.wire for tool in listing.tools)  # as compact JSON, none has a line break
        return _Recorded(session, replace(listing, tools=()), zlib.compress(wires.encode(), level=1))

    def listing(self) -> Listing:
        """Return the list."""
        wires = zlib.decompress(self.definitions).decode().split("\n")
        return replace(self.head, tools=tuple(ToolDefinition.from_wire(wire) for wire in wires if wire))


@dataclass(frozen=True, slots=True)
class _Listed:
    """The last listing of a server: its command, the time of its announcement, and the mode of the next listing.

    The mode and what was `recorded` are used until `probe_at_s` by the monotonic clock.
    `failed`: the listing raised an error. `varies`: the server gave the same list in other bytes.
    """

    command: StdioTarget | None
    announced_at: float
    mode: str
    probe_at_s: float
    failed: bool = False
    recorded: _Recorded | None = None
    varies: bool = False

    @property
    def recorded_bytes(self) -> int:
        """Return the bytes of what is recorded."""
        return SESSION_BYTES + len(self.recorded.definitions) if self.recorded else 0


class Lister:
    """Lists servers within the limits of the settings. Threads may list different servers at the same time."""

    def __init__(
        self,
        settings: Settings,
        slots: LargePayloadSlots,
        starts: StartTurns,
        clock_s: Callable[[], float] = time.monotonic,
        share: Share | None = None,
    ) -> None:
        """Read the options of servers; with `share`, a stdio server is listed by the process that serves calls.

        Raises:
            ConfigInvalid: the policy file is invalid.
        """
        self._dialler = dialler_for(settings, full_environment())
        self._usual = Limits(timeout_s=settings.listing_timeout_s)
        self._slots = slots
        self._starts = starts
        self._clock_s, self._share = clock_s, share
        self._listed: dict[str, _Listed] = {}
        self._recorded_bytes = 0
        self._changing = threading.Lock()

    def list_server(self, announcement: ServerAnnouncement, announced_at: float) -> Listing:
        """Return all tools that the server offers now and its options include; the announcement came at this time.

        A server that was listed since then is first asked again what that listing asked: equal bytes are an equal list.
        Otherwise it gets no probe, unless it rejects the protocol of that listing at once.

        Raises:
            ServerError, FetchInterrupted: from `fetch_tools_blocking`.
        """
        listing = self._list(announcement, announced_at)
        # what is recorded has all tools, so that an equal list follows changed options too
        return self._dialler.options(announcement.server_id, announcement.labels).selected(listing)

    def _list(self, announcement: ServerAnnouncement, announced_at: float) -> Listing:
        server_id, began_s = announcement.server_id, self._clock_s()
        target = self._dialler.listing_target(server_id, announcement.endpoint, announcement.labels)
        command = target if isinstance(target, StdioTarget) else None
        last = self._forget(server_id)
        # a command may install packages, unless its last start succeeded
        has_started = last is not None and last.command == command and not last.failed
        limits = self._usual if has_started else replace(self._usual, start_timeout_s=STDIO_START_TIMEOUT_S)
        is_known = last and (last.command, last.announced_at) == (command, announced_at) and began_s < last.probe_at_s
        known = last if is_known else None
        if known and isinstance(target, HttpTarget) and (listing := self._list_as_recorded(server_id, target, known)):
            return listing
        if known and known.mode != PROBE and (listing := self._list_unprobed(announcement, target, limits, known)):
            return listing
        listing, recorder = self._fetch(announcement, target, limits, PROBE)
        if known and known.mode == PROBE:
            listed = replace(known, failed=False)
        else:
            mode = connect_mode(listing)
            if known and mode == known.mode:
                mode = PROBE  # the server has just rejected this mode
            listed = _Listed(command, announced_at, mode, began_s + PROBE_AFTER_S)
        self._keep(server_id, _recorded(listed, known, listing, recorder))
        return listing

    def _list_as_recorded(self, server_id: str, target: HttpTarget, known: _Listed) -> Listing | None:
        """Return the last list, None if the server's answers may differ from those that gave it."""
        recorded = known.recorded
        if recorded is None or not recorded.session.is_of(target):
            return None
        if target.tokens and target.tokens.is_signed_in():  # since then
            return None
        if not answers_as_recorded(server_id, target, self._usual, recorded.session):
            return None
        self._keep(server_id, known)
        return recorded.listing()

    def _list_unprobed(
        self, announcement: ServerAnnouncement, target: Target, limits: Limits, known: _Listed
    ) -> Listing | None:
        """Return the list in the mode of the last listing, None if the server rejects it at once."""
        server_id = announcement.server_id
        self._keep(server_id, replace(known, mode=PROBE, failed=True, recorded=None))  # unless it succeeds
        began_s = self._clock_s()
        try:
            listing, recorder = self._fetch(announcement, target, limits, known.mode)
        except ProtocolViolation:
            if self._clock_s() - began_s > REJECTED_WITHIN_S:
                raise
            return None
        self._keep(server_id, _recorded(known, known, listing, recorder))
        return listing

    def _keep(self, server_id: str, listed: _Listed) -> None:
        self._forget(server_id)
        with self._changing:
            if len(self._listed) >= MOST_REMEMBERED:
                self._listed.clear()
                self._recorded_bytes = 0
            self._recorded_bytes += listed.recorded_bytes
            self._listed[server_id] = listed
            while self._recorded_bytes > MOST_RECORDED_BYTES:
                # the one that was listed least recently, of a server that may be gone
                oldest = next(server for server, each in self._listed.items() if each.recorded)
                self._recorded_bytes -= self._listed[oldest].recorded_bytes
                self._listed[oldest] = replace(self._listed[oldest], recorded=None)

    def _forget(self, server_id: str) -> _Listed | None:
        with self._changing:
            listed = self._listed.pop(server_id, None)
            self._recorded_bytes -= listed.recorded_bytes if listed else 0
            return listed

    def _fetch(
        self, announcement: ServerAnnouncement, target: Target, limits: Limits, mode: str
    ) -> tuple[Listing, Recorder | None]:
        """Return the list, with the recorder of a session over HTTP."""
        server_id = announcement.server_id
        try_acquire = partial(self._slots.try_acquire, server_id)
        if not isinstance(target, StdioTarget):
            recorder = Recorder(target) if target.transport == "streamable-http" else None
            return fetch_tools_blocking(server_id, target, limits, try_acquire, mode=mode, recorder=recorder), recorder
        with self._starts.turn(server_id) as end_turn:
            shared = self._share(announcement, mode == HANDSHAKE) if self._share else None
            listing = fetch_tools_blocking(
                server_id, target, limits, try_acquire, end_turn=end_turn, mode=mode, shared=shared
            )
            return listing, None


def _recorded(listed: _Listed, known: _Listed | None, listing: Listing, recorder: Recorder | None) -> _Listed:
    """Return the listed server with this list; `known` is that of the last one, whose answers differed."""
    if recorder is None:
        return listed
    last = known.recorded if known else None
    is_same = last is not None and last.session.is_of(recorder.target) and last.listing() == listing
    varies = is_same or (known is not None and known.varies)
    session = None if varies else recorder.recording(without_probe=listed.mode != PROBE)
    return replace(listed, recorded=_Recorded.of(session, listing) if session else None, varies=varies)
