"""What the transports see of a server and the SDK's errors do not tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import ServerError

if TYPE_CHECKING:
    import anyio

_QUOTED_CHARACTERS = 300


@dataclass(slots=True)
class Evidence:
    """Notes on one attempt to list one server's tools, for the error that it may end in.

    `scope` encloses the whole attempt. `http_status` is that of the last request when it was an error.
    `oddity` is what came instead of an answer since the last proper one. `stderr` is the end of what a child wrote.
    """

    server_id: str
    scope: anyio.CancelScope
    secrets: tuple[str, ...] = field(default=(), repr=False)
    verdict: ServerError | None = None
    http_status: int | None = None
    oddity: str | None = None
    stderr: bytes = b""
    exit_code: int | None = None

    def condemn(self, error: ServerError) -> ServerError:
        """Settle the attempt: end all that is under way, and let the first error given here be its outcome.

        Raising alone would not do: the SDK's tasks log some errors and go on waiting.
        """
        self.verdict = self.verdict or error
        self.scope.cancel()
        return error

    def quote(self, text: str | bytes) -> str:
        """Return a server's words fit for a message: one printable line, cut, without the credentials it was given."""
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        for secret in self.secrets:
            plain = plain.replace(secret, "***")
        line = " ".join(plain.split())
        printable = "".join(sign if sign.isprintable() else "\ufffd" for sign in line)
        return printable if len(printable) <= _QUOTED_CHARACTERS else printable[:_QUOTED_CHARACTERS] + "…"
