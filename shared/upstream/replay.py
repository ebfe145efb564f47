"""Repeats the requests of a session, to learn at a part of its cost whether the server still answers the same.

The SDK's client takes most of the processor time of a listing, and most listings equal the one before. So a session is
recorded: its POSTs, and a digest of what was read of each response. Equal bytes mean an equal list; anything else
means nothing, and a new session decides.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx2
from mcp.client.streamable_http import LAST_EVENT_ID, MCP_SESSION_ID
from typing_extensions import override

from shared.upstream.http import proxy_for, tls_context
from shared.upstream.session import SMALL_BYTES

if TYPE_CHECKING:
    from shared.upstream.target import HttpTarget

# The request by which the SDK finds out the protocol; a session without it gives the same list.
_PROBE = "server/discover"
_END_WITHIN_S = 2.0
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(frozen=True, slots=True)
class Post:
    """A POST, and what was read of its response: `size_bytes` of the body with this digest, all of it or a beginning.

    The SDK stops to read an event stream after the response that it waits for, and never reads that of a notification.
    """

    headers: tuple[tuple[str, str], ...]
    content: bytes
    status: int
    content_type: str
    size_bytes: int
    digest: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """The POSTs of a session in their order, without its session id; its credentials are those of the target."""

    target: HttpTarget
    posts: tuple[Post, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all responses."""
        return sum(post.size_bytes for post in self.posts)

    def is_of(self, target: HttpTarget) -> bool:
        """Return whether a session with this target would send the same; its addresses were checked just now."""
        return replace(self.target, addresses=target.addresses) == target


class Recorder:
    """Records the session with a target while it runs."""

    def __init__(self, target: HttpTarget) -> None:
        self.target = target
        self._sent = 0
        self._noted: list[_Noted] = []
        self._is_resumed = self._has_token = False
        self._own = {name.lower() for name in target.headers}

    def begin_again(self) -> None:
        """Forget what is noted."""
        self._noted.clear()
        self._sent = 0

    def sending(self, request: httpx2.Request) -> None:
        """Count a POST: without its response, the session is not recorded."""
        self._sent += request.method == "POST"

    def noting(
        self, request: httpx2.Request, response: httpx2.Response, body: httpx2.AsyncByteStream
    ) -> httpx2.AsyncByteStream:
        """Return the body; what is read of it is noted."""
        self._is_resumed |= LAST_EVENT_ID in request.headers  # a response came in parts
        self._has_token |= "authorization" in request.headers and "authorization" not in self._own
        if request.method != "POST":
            return body
        self._noted.append(_Noted(request, response, body))
        return self._noted[-1]

    def recording(self, *, without_probe: bool) -> Recording | None:
        """Return the recorded session, None if repeating it would prove nothing, or if its responses are large."""
        noted = [each for each in self._noted if not (without_probe and each.message.get("method") == _PROBE)]
        # only the guarded transport uses a proxy, or access tokens
        if (
            not noted
            or len(self._noted) < self._sent
            or self._is_resumed
            or self._has_token
            or proxy_for(self.target)
            or not all(each.has_answer() for each in noted)
        ):
            return None
        # some headers depend on the connection or the session, and the target has the credentials
        dropped = {"content-length", "cookie", MCP_SESSION_ID, *self._own}
        recording = Recording(self.target, tuple(each.post(dropped) for each in noted))
        return recording if recording.size_bytes <= SMALL_BYTES else None


class _Noted(httpx2.AsyncByteStream):
    """A POST with its response, as whose body it notes what is read of it."""

    def __init__(self, request: httpx2.Request, response: httpx2.Response, body: httpx2.AsyncByteStream) -> None:
        self._request, self._response, self._body = request, response, body
        self._read, self._is_whole = bytearray(), False
        self.message: dict[str, Any] = json.loads(request.content)

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            if len(self._read) <= SMALL_BYTES:
                self._read += chunk
            yield chunk
        self._is_whole = True

    @override
    async def aclose(self) -> None:
        await self._body.aclose()

    def has_answer(self) -> bool:
        """Return whether repeating the POST shows what the server answers: its body has the response of a request."""
        if "method" not in self.message:
            return False  # it answers the server, which may ask something else next time
        if "id" not in self.message:
            return True
        try:
            answer: Any = json.loads(_json_text(bytes(self._read)))
        except (ValueError, RecursionError):
            return False
        return isinstance(answer, dict) and ("result" in answer or "error" in answer)

    def post(self, dropped: set[str]) -> Post:
        """Return the POST without these headers, and without the trace of its listing."""
        for name in ("traceparent", "tracestate"):
            self.message.get("params", {}).get("_meta", {}).pop(name, None)
        return Post(
            tuple((name, value) for name, value in self._request.headers.items() if name not in dropped),
            json.dumps(self.message).encode(),
            self._response.status_code,
            self._response.headers.get("content-type", "").partition(";")[0],
            len(self._read),
            hashlib.sha256(self._read).digest(),
            self._is_whole,
        )


def _json_text(body: bytes) -> bytes:
    """Return the JSON of a body: the data of the last event, or all of it."""
    events = [event for event in _BLANK_LINE.split(body) if re.search(rb"^data:", event, re.MULTILINE)]
    lines = events[-1].splitlines() if events else []
    return b"\n".join(line[5:] for line in lines if line.startswith(b"data:")) or body


class Repetition:
    """The requests of a recording, sent again to this target by a plain client, within so many seconds.

    The rules of the guarded transport hold: only the target's addresses, no redirect, and no more of a body than was
    recorded. A plain client takes a tenth of the processor time of one with an event loop.
    """

    def __init__(self, recording: Recording, target: HttpTarget, within_s: float) -> None:
        self._posts = recording.posts
        self._path = httpx2.URL(target.url).raw_path.decode("ascii")
        self._credentials = tuple(target.headers.items())
        self._within_s = within_s
        self._connection = _Connection(target, within_s)

    @property
    def is_stopped(self) -> bool:
        """Return whether `stop` was called."""
        return self._connection.is_stopped

    def stop(self) -> None:
        """Have `is_answered_alike` return False soon; safe to call from any thread."""
        self._connection.is_stopped = True
        self._connection.abort()

    def is_answered_alike(self) -> bool:
        """Return whether the server answers each request with the bytes of the recording; False after any error."""
        session: dict[str, str] = {}
        try:
            with self._connection.limited(self._within_s):
                for post in self._posts:
                    response = self._request("POST", post, session, post.content)
                    if session_id := response.getheader(MCP_SESSION_ID):
                        session.setdefault(MCP_SESSION_ID, session_id)
                    if not self._is_alike(response, post):
                        return False
            return True
        except (OSError, http.client.HTTPException, ValueError):
            self._connection.close()
            return False  # a session will meet the error too, and name it
        finally:
            if session and not self.is_stopped:
                self._end(session)
            self._connection.close()

    def _request(self, method: str, post: Post, session: dict[str, str], content: bytes) -> http.client.HTTPResponse:
        self._connection.putrequest(method, self._path, skip_host=True, skip_accept_encoding=True)
        for name, value in (*post.headers, *self._credentials, *session.items()):
            self._connection.putheader(name, value)
        self._connection.putheader("content-length", str(len(content)))
        self._connection.endheaders(content)
        return self._connection.getresponse()

    def _is_alike(self, response: http.client.HTTPResponse, post: Post) -> bool:
        content_type = response.getheader("content-type", "").partition(";")[0]
        is_alike = (response.status, content_type) == (post.status, post.content_type)
        body = response.read(post.size_bytes + (1 if post.is_whole else 0)) if is_alike else b""
        if not response.isclosed():
            self._connection.close()  # the next request must not read the rest
        return is_alike and len(body) == post.size_bytes and hashlib.sha256(body).digest() == post.digest

    def _end(self, session: dict[str, str]) -> None:
        """End the server's session; one that cannot be ended expires."""
        with suppress(OSError, http.client.HTTPException), self._connection.limited(_END_WITHIN_S):
            self._request("DELETE", self._posts[-1], session, b"")


class _Connection(http.client.HTTPConnection):
    """A connection that is made when it is needed, only to the addresses of the target."""

    def __init__(self, target: HttpTarget, timeout_s: float) -> None:
        url = httpx2.URL(target.url)
        self._has_tls = url.scheme == "https"
        port = url.port or (http.client.HTTPS_PORT if self._has_tls else http.client.HTTP_PORT)
        super().__init__(url.host, port, timeout=timeout_s)
        self._addresses = target.addresses or (url.raw_host.decode("ascii"),)
        self._timeout_s = timeout_s
        self._last: socket.socket | None = None
        self.is_stopped = self._is_aborted = False

    @contextmanager
    def limited(self, within_s: float) -> Generator[None]:
        """Abort what the block does after so many seconds: a socket limits one read, and a server may send slowly."""
        self._is_aborted = self.is_stopped
        timer = threading.Timer(within_s, self.abort)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def abort(self) -> None:
        """Have the present read or write fail, and each later one."""
        self._is_aborted = True
        if self._last:
            with suppress(OSError):
                socket.socket.shutdown(self._last, socket.SHUT_RDWR)  # of TLS, this would touch more than the socket

    @override
    def connect(self) -> None:
        for address in self._addresses:
            if self._is_aborted:  # the addresses before it took all the time
                raise TimeoutError
            with suppress(OSError):
                self.sock = self._last = socket.create_connection((address, self.port), self._timeout_s)
                break
        else:
            raise ConnectionError
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._has_tls:
            self.sock = self._last = tls_context().wrap_socket(self.sock, server_hostname=self.host)
        if self._is_aborted:  # before there was this socket
            raise TimeoutError
