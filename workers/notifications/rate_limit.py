"""What a connection that is held open shows beyond that of a listing, and how much a server may say on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus

import anyio

from shared.errors import NotificationsUnsupported, ServerUnreachable
from shared.upstream.transport.errors import status_error
from shared.upstream.transport.session_state import SessionState

# A connection's own messages take a few hundred bytes; a server that sends more is held up, and costs no CPU.
BURST_BYTES = 64 << 10
STEADY_BYTES_PER_S = 4 << 10

# A stream that is refused so may be granted another time.
_MAY_BE_GRANTED = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
)


class Allowance:
    """Bytes that may come: `burst_bytes` at once, then so many a second."""

    def __init__(self, burst_bytes: int = BURST_BYTES, bytes_per_s: float = STEADY_BYTES_PER_S) -> None:
        self._burst_bytes = burst_bytes
        self._bytes_per_s = bytes_per_s
        self._left = float(burst_bytes)
        self._counted_at = 0.0

    def wait_s(self, size_bytes: int, now: float) -> float:
        """Count so many bytes that came at this time, and return how long no more may be read."""
        earned = (now - self._counted_at) * self._bytes_per_s
        self._left = min(self._burst_bytes, self._left + earned) - size_bytes
        self._counted_at = now
        return max(0.0, -self._left / self._bytes_per_s)


@dataclass(slots=True)
class NotificationSessionState(SessionState):
    """`opened` once the server grants a stream for messages of its own, `ended` when nothing more can come."""

    opened: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)
    allowance: Allowance = field(default_factory=Allowance)

    async def received(self, size_bytes: int) -> None:
        """Hold up a server that says too much: nothing is read meanwhile, so it has to wait."""
        await anyio.sleep(self.allowance.wait_s(size_bytes, anyio.current_time()))

    def stream_answered(self, status: int) -> None:
        """Take a refused stream for the outcome: the SDK would go on in silence."""
        if self.ended.is_set():  # the SDK asks again, as fast as the server likes, while we are about to leave
            self.fail(ServerUnreachable(self.server_id, "the connection ended"))
        elif status < HTTPStatus.BAD_REQUEST:
            self.opened.set()
        elif status in _MAY_BE_GRANTED or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.fail(status_error(self, status))
        else:
            self.fail(NotificationsUnsupported(self.server_id, f"HTTP {status}: it has no stream for its own messages"))

    def stream_ended(self) -> None:
        """Note that nothing more can come."""
        self.ended.set()
