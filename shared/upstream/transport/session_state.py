"""Observations of a transport that the SDK's errors do not contain."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio

from shared.errors import ServerError
from shared.quoting import quoted
from shared.text.display import printable
from shared.text.invisible import mark_text
from shared.upstream.transport.lenient_json import LastEvent

SMALL_BYTES = 256 << 10
SMALL_NODES = 10_000
"""Limits of a small message: it has room for hundreds of real tools and needs at most 2 MiB when parsed."""

_QUOTED_CHARACTERS = 300
_POLL_S = 0.05
_CREDIT_S = 5.0  # extends the deadline during a wait; the unused part is subtracted afterwards


@dataclass(slots=True)
class HttpExchange:
    """The state of one HTTP request of a session.

    `sent` is true once it may have reached the server.
    `http_status` is the status of an error response.
    """

    sent: bool = False
    http_status: int | None = None


current_exchange: ContextVar[HttpExchange | None] = ContextVar("current_exchange", default=None)
"""The exchange of the current context; the SDK sends a request in the context of its caller."""


def _always() -> bool:
    return True


def _ignore() -> None:
    pass


@dataclass(slots=True)
class SessionState:
    """Observations of one session, used for its error.

    `scope` encloses the whole session. `http_status` is the status of the last request if it was an error.
    `protocol_violation` describes invalid output since the last valid message.
    `stderr` is the end of the child's stderr. `was_stopped` is true if Toolscale had to end the child by a signal.
    `may_hold_large` returns whether this session has a slot. `is_started` is true from a child's first message; until
    then the child may be an installer. `on_started` is called at that message. `has_session_id` is true once an HTTP
    server has assigned one. With `last_event`, messages that a strict parser rejects are parsed leniently.
    """

    server_id: str
    scope: anyio.CancelScope
    secrets: tuple[str, ...] = field(default=(), repr=False)
    error: ServerError | None = None
    http_status: int | None = None
    protocol_violation: str | None = None
    stderr: bytes = b""
    exit_code: int | None = None
    was_stopped: bool = False
    may_hold_large: Callable[[], bool] = field(default=_always, repr=False)
    on_started: Callable[[], None] = field(default=_ignore, repr=False)
    is_started: bool = False
    has_session_id: bool = False
    last_event: LastEvent | None = field(default=None, repr=False)

    async def wait_for_slot(self, size_bytes: int, nodes: int) -> None:
        """Wait for a slot before a large message is read further or parsed; return at once for a small message.

        The session's deadline is extended by the wait.
        """
        if size_bytes <= SMALL_BYTES and nodes <= SMALL_NODES:
            return
        while not self.may_hold_large():
            began = anyio.current_time()
            self.scope.deadline += _CREDIT_S
            await anyio.sleep(_POLL_S)
            self.scope.deadline += anyio.current_time() - began - _CREDIT_S

    def note_start(self) -> None:
        """Handle a message of a child; the first one ends its start."""
        if not self.is_started:
            self.is_started = True
            self.on_started()

    async def received(self, size_bytes: int) -> None:
        """Handle received bytes; an implementation that waits slows the sender down."""

    def stream_answered(self, status: int) -> None:
        """Handle the HTTP status of a request for the stream of server messages."""

    def stream_ended(self) -> None:
        """Handle the end of the stream of server messages."""

    def fail(self, error: ServerError) -> ServerError:
        """Cancel the session, and keep the first error given here as its result.

        An exception is not enough: the SDK's tasks log some errors and continue to wait.
        """
        self.error = self.error or error
        self.scope.cancel()
        return error

    def quote(self, text: str | bytes, characters: int = _QUOTED_CHARACTERS) -> str:
        """Return a server's text for a message: one printable line in quotes, shortened, with credentials replaced."""
        return quoted(self.line(text, characters))

    def line(self, text: str | bytes, characters: int = _QUOTED_CHARACTERS) -> str:
        """Return a text as `quote` does, without the quotes."""
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        for secret in self.secrets:
            plain = plain.replace(secret, "***")
        line = " ".join(plain.split())
        shown = printable(mark_text(line))
        return shown if len(shown) <= characters else shown[:characters] + "…"
