"""A session with a server: what the errors of the SDK do not say, and errors of `shared.errors` in place of them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread
import httpx2
import structlog
from mcp import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from prometheus_client import Counter
from pydantic import ValidationError

from shared.errors import (
    NEEDS_SIGN_IN,
    ListingTooLarge,
    ProtocolViolation,
    ServerAuthRequired,
    ServerError,
    ServerFailed,
    ServerFlooded,
    ServerTimeout,
    ServerUnreachable,
    SignInRequired,
)
from shared.quoting import printable, quoted, quoted_name
from shared.text.invisible import mark_text
from shared.upstream.error_bodies import cause_in
from shared.upstream.masking import Mask
from shared.upstream.messages import MAX_MESSAGE_NODES, REFUSED
from shared.upstream.odd_results import MANY_ITEMS, items_of, readable
from shared.upstream.target import NOT_SENDABLE, start_problem
from shared.validation import first_invalid

if TYPE_CHECKING:
    from shared.upstream.auth import Challenge
    from shared.upstream.replay import Recorder
    from shared.upstream.tokens import AccessTokens

CLOSING_S = 1.0
CALLED_CLOSING_S = 5.0
"""Seconds that a child which was called has to close, such as a browser, and again after SIGTERM."""

SMALL_BYTES = 256 << 10
SMALL_NODES = 10_000
"""Limits of a small message: it has room for hundreds of real tools and needs at most 2 MiB when parsed."""

_QUOTED_CHARACTERS = 300
# Of a session that lasts for weeks, the access tokens of the last hours.
_TOKENS_KEPT = 50
# Colours, and the margin of the traceback of an exception group.
_NO_TEXT = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|^[ ]+[|+](?:[ ]|(?=[-+]|$))", re.MULTILINE)
# Indented lines belong to the line before, and what runs a program ends with lines that do not name the error.
_NO_LAST_WORDS = re.compile(
    r"\s|\W*$|(?:Node\.js|Bun) v\d|\(Use `|npm (?:notice|error|ERR!)(?! code )|\[notice\]|note: |exit status \d"
    r"|goroutine \d|[\w./]+\([^)]*\)$|#\d|(?:Run|See|Try) ['\"`]"
)
_POLL_S = 0.05
_CREDIT_S = 5.0  # extends the deadline during a wait; the unused part is subtracted afterwards

LAST_WORDS = "; its last words: "
"""Begins the end of a child's stderr, as a JSON string, at the end of an error."""

FOREIGN_ERRORS = (
    ExceptionGroup,
    MCPError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
    ValueError,
    RuntimeError,
    ServerError,
)
"""Possible errors of an attempt to list a server's tools; the SDK raises some built-in exceptions."""

_NOT_MCP = (INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, UNSUPPORTED_PROTOCOL_VERSION)
# A firewall, a limit of countries and a check of the Origin answer 403 too.
_OF_CREDENTIALS = re.compile(
    r"credential|passw|api.?key|auth(?!or(?!i))|(?<!csrf.)(?<!xsrf.)token|log.?in\b|sign.?in\b|scopes?\b", re.IGNORECASE
)
_MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_SDK_STAND_INS = (
    (INTERNAL_ERROR, "Server returned an error response"),
    (METHOD_NOT_FOUND, "Not Found"),
    (INVALID_REQUEST, "Session terminated"),
)

FLOODS = Counter(
    "toolscale_server_floods_total", "Connections to servers that were ended since the server sent too many messages."
)

_log = structlog.get_logger()


@dataclass(slots=True)
class HttpExchange:
    """The state of one HTTP request of a session.

    `sent` is true once it may have reached the server. `request_id` is that of JSON-RPC.
    `http_status` is the status of an error response, `challenge` that of 401 or 403, and `words` begin its body.
    `tokens` are those of its caller, `token` the last one that was used, and `error` why there is none.
    """

    sent: bool = False
    request_id: str | int | None = None
    http_status: int | None = None
    challenge: Challenge | None = None
    words: str = ""
    tokens: AccessTokens | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    error: ServerError | None = None


@dataclass(frozen=True, slots=True)
class HttpSession:
    """A session that an HTTP server of the handshake era has assigned: its id, and the result of `initialize`."""

    session_id: str
    initialized: Mapping[str, Any]


class Allowance:
    """The messages that a server may send: `AT_ONCE` for each of our requests, and `PER_S` more each second.

    Comments of event streams and lines that are not messages count too. `BYTES` count as a message, and so do those of
    a child's stderr.
    """

    AT_ONCE = 500.0
    PER_S = 100.0
    BYTES = 16 << 10
    # More requests in flight allow no higher rate: the messages of one server would take all processor time.
    MOST_REQUESTS = 8
    UNANSWERED = 32
    """Requests of the server that may wait for our answer; each is a task, and its answer waits until it is read."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.unanswered = 0
        self._requests: set[str | int] = set()
        self._clock_s = clock_s
        self._left = self.AT_ONCE
        self._counted_at_s = clock_s()

    def begin(self, request_id: str | int) -> None:
        """Note a request that is sent to the server."""
        self._requests.add(request_id)
        self._left += self.AT_ONCE

    def end(self, request_id: str | int) -> None:
        """Note that a request is answered or cancelled."""
        self._requests.discard(request_id)

    def excess(self, messages: int, size_bytes: int) -> str | None:
        """Count messages, and return what the server does too often; None: nothing."""
        now, requests = self._clock_s(), max(len(self._requests), 1)
        refilled = self._left + (now - self._counted_at_s) * self.PER_S * min(requests, self.MOST_REQUESTS)
        self._left = min(refilled, self.AT_ONCE * requests) - messages - size_bytes / self.BYTES
        self._counted_at_s = now
        if self.unanswered > self.UNANSWERED:
            return f"sends more than {self.UNANSWERED} requests without reading our answers"
        return (
            f"sends more than {self.AT_ONCE:g} messages for a call, or {self.PER_S:g} a second"
            if self._left < 0
            else None
        )


current_exchange: ContextVar[HttpExchange | None] = ContextVar("current_exchange", default=None)
"""The exchange of the current context; the SDK sends a request in the context of its caller."""


@dataclass(slots=True)
class SessionState:
    """Observations of one session, used for its error.

    `scope` encloses the whole session. `http_status` is the status of the last request if it was an error,
    and `words` begin its body, or that of a page.
    `protocol_violation` describes invalid output since the last valid message.
    `stderr` is the end of the child's stderr. `was_stopped` is true if Toolscale had to end the child by a signal.
    `may_hold_large` returns whether this session has a slot. `is_started` is true from a child's first message; until
    then the child may be an installer. `on_started` is called at that message. `took_probe` is true if a child that
    has ended, or hangs, has read its first message. `session_id` is that which an HTTP server has assigned; with
    `continued`, the session is an earlier one, and without `ends_session`, it may be continued later.
    With `allowance`, a server that exceeds it loses its session. With `recorder`, an HTTP session is recorded.
    `is_sse` is true once the server has opened a stream of the older SSE transport, which is a session.
    With `is_shared`, each call brings its own tokens, and a request outside a call has none.
    `hint` is the likely cause of a failure of the child, and its cure.
    `closing_s` are the seconds that a child has after the end of its stdin, and again after SIGTERM.
    `login` is the command by which a person signs in, empty where nobody can. `on_token` is called with each access
    token that is used.
    """

    server_id: str
    scope: anyio.CancelScope
    secrets: tuple[str, ...] = field(default=(), repr=False)
    tokens: tuple[str, ...] = field(default=(), repr=False)
    error: ServerError | None = None
    http_status: int | None = None
    words: str = ""
    challenge: Challenge | None = None
    protocol_violation: str | None = None
    stderr: bytes = b""
    hint: str = ""
    closing_s: float = field(default_factory=lambda: CLOSING_S)
    exit_code: int | None = None
    was_stopped: bool = False
    may_hold_large: Callable[[], bool] = field(default=lambda: True, repr=False)
    on_started: Callable[[], None] = field(default=lambda: None, repr=False)
    is_started: bool = False
    took_probe: bool = False
    session_id: str | None = None
    continued: HttpSession | None = None
    ends_session: bool = True
    allowance: Allowance | None = field(default=None, repr=False)
    recorder: Recorder | None = field(default=None, repr=False)
    login: str = ""
    is_sse: bool = False
    is_shared: bool = False
    has_token_error: bool = False
    on_token: Callable[[str], None] = field(default=lambda _: None, repr=False)

    def begin_again(self) -> None:
        """Forget what the first attempt to open the session left."""
        self.http_status = self.challenge = self.protocol_violation = self.exit_code = None
        self.stderr, self.was_stopped, self.is_sse = b"", False, False
        self.session_id, self.words, self.is_started = None, "", False
        if self.recorder:
            self.recorder.begin_again()

    def hide(self, token: str) -> None:
        """Hide an access token in messages about the server from now on."""
        if token not in self.tokens:
            self.tokens = (token, *self.tokens[: _TOKENS_KEPT - 1])
            self.on_token(token)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return what messages about the server do not show: the latest access tokens and the target's credentials."""
        return *self.tokens, *self.secrets

    def count(self, messages: int, size_bytes: int) -> None:
        """Count what the server sent, parsed or not.

        Raises:
            ServerFlooded: it exceeds the allowance, so the session ends.
        """
        if self.allowance and self.error is None and (excess := self.allowance.excess(messages, size_bytes)):
            FLOODS.inc()
            _log.warning("server_flooded", server=self.server_id, reason=excess)
            raise self.fail(ServerFlooded(self.server_id, f"{excess}, so its connection was ended"))

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

    def note_status(self, status: int | None, challenge: Challenge | None, words: str = "") -> None:
        """Keep what a response says that is an error: for its exchange, and for the session.

        The session keeps a challenge until a success: the SDK goes on after a refused probe, with a handshake that may
        fail for another reason.
        """
        self.http_status, self.words = status, words
        if challenge or status is None:
            self.challenge = challenge
        if exchange := current_exchange.get():
            exchange.http_status, exchange.challenge, exchange.words = status, challenge, words

    @property
    def is_hurried(self) -> bool:
        """Return whether a child gets no time after the end of its stdin: it failed, or sent nothing until now."""
        return self.scope.cancel_called and (self.error is not None or self.closing_s < CALLED_CLOSING_S)

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
        line = " ".join(Mask(self.hidden).text(plain).split())
        shown = printable(mark_text(line))
        return shown if len(shown) <= characters else shown[:characters] + "…"


def to_server_error(state: SessionState, error: Exception) -> ServerError | None:
    """Return our error for an exception of the SDK, None if the server did not cause it.

    The transport's error has precedence; in a group, errors other than ServerUnreachable are preferred.
    """
    if state.error:
        return state.error
    found = [ours for leaf in leaves(error) if (ours := _leaf_error(state, leaf))]
    return min(found, key=lambda ours: isinstance(ours, ServerUnreachable), default=None)


def timeout_error(state: SessionState, timeout_s: float) -> ServerError:
    """Return our error for an attempt that exceeded its time."""
    if state.error:
        return state.error
    if state.protocol_violation:
        return ProtocolViolation(state.server_id, state.protocol_violation)
    end = f"; stopped by Toolscale after {timeout_s:g} s" if state.was_stopped else f" within {timeout_s:g} s"
    return ServerTimeout(state.server_id, f"no complete list of tools{end}{_stderr_tail(state)}")


def status_error(
    state: SessionState, status: int, challenge: Challenge | None = None, *, body: str = "", words: str = ""
) -> ServerError:
    """Return our error for an HTTP status of 400 or above, with the server's words, or the cause in its body."""
    if cause := cause_in(body) if not words else "":
        words = state.quote(cause)
    reason = f"HTTP {status}: {words}" if words else f"HTTP {status}"
    if challenge and state.login and (challenge.wants_sign_in or challenge.wants_more_scopes):
        return sign_in_required(state.server_id, challenge, state.login)
    has_challenge = challenge is not None and bool(challenge.header)
    is_of_credentials = has_challenge or _OF_CREDENTIALS.search(words) is not None
    if status == HTTPStatus.UNAUTHORIZED or (status == HTTPStatus.FORBIDDEN and is_of_credentials):
        return ServerAuthRequired(state.server_id, f"{reason}; credentials are missing, wrong, or not enough")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _MAY_PASS:
        return ServerFailed(state.server_id, reason)
    return ProtocolViolation(state.server_id, reason)


def sign_in_required(server_id: str, challenge: Challenge, login: str) -> SignInRequired:
    """Return the error for a server that needs a sign-in, with the command that helps."""
    scopes = printable(challenge.scope or "")[:_QUOTED_CHARACTERS] if challenge.wants_more_scopes else ""
    with_scopes = f" with the scopes {quoted(scopes)}" if scopes else ""
    error = SignInRequired(server_id, f"{NEEDS_SIGN_IN}{with_scopes}; run `{login}`")
    error.challenge = challenge
    return error


def message_too_large(state: SessionState, limit_bytes: int) -> ListingTooLarge:
    """Return our error for a message over the limit."""
    return ListingTooLarge(state.server_id, f"one message is larger than {limit_bytes} bytes")


def message_too_dense(state: SessionState) -> ListingTooLarge:
    """Return our error for a message with too many JSON values."""
    return ListingTooLarge(state.server_id, f"one message holds more than {MAX_MESSAGE_NODES} values")


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(inner)
    else:
        yield error


def _leaf_error(state: SessionState, error: BaseException) -> ServerError | None:
    match error:
        case ServerError():
            return error
        case MCPError():
            return to_answer_error(state, error, state)
        case httpx2.HTTPError() | httpx2.InvalidURL() | UnicodeError():
            return _http_error(state, error)
        case OSError():
            return ServerUnreachable(state.server_id, f"cannot be started: {start_problem(error)}")
        case ValidationError():
            return ProtocolViolation(state.server_id, invalid_result(error))
        case anyio.BrokenResourceError() | anyio.ClosedResourceError():
            return ServerUnreachable(state.server_id, "the connection broke")
        case (
            RuntimeError() | ValueError()
        ):  # the SDK raises these for no common version and for a stream without an endpoint
            return ProtocolViolation(state.server_id, f"the session failed: {state.quote(str(error))}")
        case _:
            return None


def to_answer_error(state: SessionState, error: MCPError, response: HttpExchange | SessionState) -> ServerError:
    """Return our error for the SDK's error of a request, and for its response, or the last one of the session."""
    server_id = state.server_id
    tail = _stderr_tail(state)
    if response.http_status:
        words = "" if is_stand_in(error) else f"{answered(state, error)}{tail}"
        return status_error(state, response.http_status, response.challenge, body=response.words, words=words)
    if is_connection_lost(error):
        hint = f"; {state.hint}" if state.hint else ""
        closed = ProtocolViolation(server_id, f"{state.protocol_violation}{hint}") if state.protocol_violation else None
        return closed or ServerUnreachable(server_id, f"the connection closed{tail}")
    page = f", {state.quote(cause_in(response.words))}" if response.words else ""
    reason = f"{error_answer(state, error)}{page}{tail}"
    if error.code == REQUEST_TIMEOUT:
        return ServerTimeout(server_id, reason)
    return ProtocolViolation(server_id, reason) if error.code in _NOT_MCP else ServerFailed(server_id, reason)


def invalid_result(error: ValidationError) -> str:
    """Return that the server answers with an invalid result, and its first wrong field."""
    # where there are several forms of a result, the path has the names of their types
    path, reason = first_invalid(error)
    field = ".".join(quoted_name(str(part)) for part in path if not str(part)[:1].isupper())
    return f"answers with an invalid result: {': '.join(filter(None, (field, reason)))}"


async def readable_result(state: SessionState, method: str, version: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result with its odd parts mended, and log those that are left out."""
    read = partial(readable, method, version, result, state.line)
    is_long = len(items_of(method, result)) > MANY_ITEMS
    mended, left_out = await anyio.to_thread.run_sync(read) if is_long else read()
    if left_out:
        _log.warning("server_result_repaired", server=state.server_id, method=method, left_out=len(left_out))
    return mended


def error_answer(state: SessionState, error: MCPError, characters: int = 300) -> str:
    """Return that the server answers with this error, or in the reader's words, why its answer was refused."""
    is_refused = isinstance(error.error.data, dict) and REFUSED in error.error.data
    return error.message if is_refused else f"answers with an error: {answered(state, error, characters)}"


def answered(state: SessionState, error: MCPError, characters: int = 300) -> str:
    """Return the message and the code of a server's error."""
    return f"{state.quote(error.message, characters)} ({error.code})"


def is_connection_lost(error: MCPError) -> bool:
    """Return whether the SDK wrote this error for a lost connection; a server may send an error of the same code."""
    is_closed = error.message == "Connection closed" or error.message.startswith("SSE stream ")
    return error.code == CONNECTION_CLOSED and is_closed


def is_stand_in(error: MCPError) -> bool:
    """Return whether the SDK wrote this error for an HTTP status, since the body has no JSON-RPC error."""
    return (error.code, error.message) in _SDK_STAND_INS


def _http_error(state: SessionState, error: httpx2.HTTPError | httpx2.InvalidURL | UnicodeError) -> ServerError:
    server_id, words = state.server_id, f"{type(error).__name__}: {state.quote(str(error))}"
    match error:
        case UnicodeError() | httpx2.LocalProtocolError():  # they quote what could not be sent, in an escaped form
            return ProtocolViolation(server_id, f"a header or a token for it cannot be sent: {NOT_SENDABLE}")
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            return ServerUnreachable(server_id, f"no connection: {words}")
        case httpx2.TimeoutException():
            return ServerTimeout(server_id, words)
        case httpx2.SSEError() | httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return ProtocolViolation(server_id, words)
        case _:
            return ServerUnreachable(server_id, f"the connection broke: {words}")


def _stderr_tail(state: SessionState) -> str:
    end = ""
    if state.exit_code is not None and not state.was_stopped:
        end = f"; exit code {state.exit_code}"
        if state.exit_code < 0:
            number = -state.exit_code
            names = [known.name for known in signal.Signals if known == number]  # a real-time signal has none
            end = f"; ended by {names[0] if names else f'signal {number}'}, which Toolscale did not send"
    words = last_words(Mask(state.hidden).text(state.stderr.decode("utf-8", "replace")))
    hint = f"; {state.hint}" if state.hint else ""
    return end + hint + (f"{LAST_WORDS}{state.quote(words)}" if words else "")


def last_words(text: str) -> str:
    """Return the end of a program's output, from its last line that says something by itself.

    That is the line of the exception below a traceback. Without such a line, the end is as long as an error shows.
    """
    lines = _NO_TEXT.sub("", text).rstrip().splitlines()
    start = next((at for at in reversed(range(len(lines))) if not _NO_LAST_WORDS.match(lines[at])), None)
    if start is None:
        return " ".join(" ".join(lines).split())[-_QUOTED_CHARACTERS:]
    return "\n".join(lines[start:])
