"""What the transports see of a server and the SDK's errors do not tell."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio

from shared.errors import ServerError

SMALL_BYTES = 256 << 10
SMALL_NODES = 10_000
"""A message up to these is small: it has room for hundreds of real tools, and takes at most 2 MiB once parsed."""

_QUOTED_CHARACTERS = 300
_POLL_S = 0.05
_CREDIT_S = 5.0  # so that the deadline does not come while we wait; what was not used is taken back


@dataclass(slots=True)
class HttpExchange:
    """What became of one request over HTTP, among others of the same session.

    `sent` is true once a server was connected to for it, and may have acted upon it.
    `http_status` is that of the answer when it was an error.
    """

    sent: bool = False
    http_status: int | None = None


current_exchange: ContextVar[HttpExchange | None] = ContextVar("current_exchange", default=None)
"""The exchange that what is sent now belongs to; the SDK sends a request in the context of who made it."""


def _always() -> bool:
    return True


@dataclass(slots=True)
class SessionState:
    """Notes on one session with one server, for the error that it may end in.

    `scope` encloses the whole session.
    `http_status` is that of the last request when it was an error.
    `oddity` is what came instead of an answer since the last proper one. `stderr` is the end of what a child wrote.
    `may_hold_much` says whether this attempt may hold a large message now.
    """

    server_id: str
    scope: anyio.CancelScope
    secrets: tuple[str, ...] = field(default=(), repr=False)
    error: ServerError | None = None
    http_status: int | None = None
    protocol_violation: str | None = None
    stderr: bytes = b""
    exit_code: int | None = None
    may_hold_large: Callable[[], bool] = field(default=_always, repr=False)

    async def wait_for_slot(self, size_bytes: int, nodes: int) -> None:
        """Wait, before more of a large message is held or it is parsed, until it may be; small ones may at once.

        The server's time does not run meanwhile.
        """
        if size_bytes <= SMALL_BYTES and nodes <= SMALL_NODES:
            return
        while not self.may_hold_large():
            began = anyio.current_time()
            self.scope.deadline += _CREDIT_S
            await anyio.sleep(_POLL_S)
            self.scope.deadline += anyio.current_time() - began - _CREDIT_S

    async def received(self, size_bytes: int) -> None:
        """Be told how many bytes came; to wait here is to hold up their sender."""

    def stream_answered(self, status: int) -> None:
        """Be told the HTTP status of a request for the stream of the server's own messages."""

    def stream_ended(self) -> None:
        """Be told that no message of the server's own can come any more."""

    def fail(self, error: ServerError) -> ServerError:
        """Settle the session: end all that is under way, and let the first error given here be its outcome.

        Raising alone would not do: the SDK's tasks log some errors and go on waiting.
        """
        self.error = self.error or error
        self.scope.cancel()
        return error

    def quote(self, text: str | bytes, characters: int = _QUOTED_CHARACTERS) -> str:
        """Return a server's words fit for a message: one printable line, cut, without the credentials it was given."""
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        for secret in self.secrets:
            plain = plain.replace(secret, "***")
        line = " ".join(plain.split())
        printable = "".join(sign if sign.isprintable() else "\ufffd" for sign in line)
        return printable if len(printable) <= characters else printable[:characters] + "…"
