"""Foreign errors of a session with a server, translated into errors of `shared.errors`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from http import HTTPStatus
from typing import cast

import anyio
import httpx2
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
from pydantic import ValidationError

from shared.errors import (
    ListingTooLarge,
    ProtocolViolation,
    ServerAuthRequired,
    ServerError,
    ServerFailed,
    ServerTimeout,
    ServerUnreachable,
)
from shared.upstream.programs import start_problem
from shared.upstream.transport.json_size import MAX_MESSAGE_NODES
from shared.upstream.transport.session_state import SessionState
from shared.validation import first_problem

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
_CREDENTIALS_WANTED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_SDK_STAND_INS = (
    (INTERNAL_ERROR, "Server returned an error response"),
    (METHOD_NOT_FOUND, "Not Found"),
    (INVALID_REQUEST, "Session terminated"),
)


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
    reason = f"no complete list of tools{_end_of_time(state, timeout_s)}{_stderr_tail(state)}"
    return ServerTimeout(state.server_id, reason)


def _end_of_time(state: SessionState, timeout_s: float) -> str:
    return f"; stopped by Toolscale after {timeout_s:g} s" if state.was_stopped else f" within {timeout_s:g} s"


def status_error(state: SessionState, status: int, words: str = "") -> ServerError:
    """Return our error for an HTTP status of 400 or above, with the server's message."""
    reason = f"HTTP {status}: {words}" if words else f"HTTP {status}"
    if status in _CREDENTIALS_WANTED:
        return ServerAuthRequired(state.server_id, f"{reason}; credentials are missing, wrong, or not enough")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _MAY_PASS:
        return ServerFailed(state.server_id, reason)
    return ProtocolViolation(state.server_id, reason)


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
            return to_answer_error(state, error, state.http_status)
        case httpx2.HTTPError() | httpx2.InvalidURL():
            return _http_error(state, error)
        case OSError():
            return ServerUnreachable(state.server_id, f"cannot be started: {start_problem(error)}")
        case ValidationError():
            return ProtocolViolation(state.server_id, f"answers with an invalid result: {first_problem(error)}")
        case anyio.BrokenResourceError() | anyio.ClosedResourceError():
            return ServerUnreachable(state.server_id, "the connection broke")
        case (
            RuntimeError() | ValueError()
        ):  # the SDK raises these for no common version and for a stream without an endpoint
            return ProtocolViolation(state.server_id, f"the session failed: {state.quote(str(error))}")
        case _:
            return None


def to_answer_error(state: SessionState, error: MCPError, http_status: int | None) -> ServerError:
    """Return our error for the SDK's error of a request, and its HTTP status."""
    server_id = state.server_id
    tail = _stderr_tail(state)
    if http_status:
        return status_error(state, http_status, "" if is_stand_in(error) else f"{answered(state, error)}{tail}")
    if is_connection_lost(error):
        closed = ProtocolViolation(server_id, state.protocol_violation) if state.protocol_violation else None
        return closed or ServerUnreachable(server_id, f"the connection closed{tail}")
    reason = f"answers with an error: {answered(state, error)}{tail}"
    if error.code == REQUEST_TIMEOUT:
        return ServerTimeout(server_id, reason)
    return ProtocolViolation(server_id, reason) if error.code in _NOT_MCP else ServerFailed(server_id, reason)


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


def _http_error(state: SessionState, error: httpx2.HTTPError | httpx2.InvalidURL) -> ServerError:
    server_id, words = state.server_id, f"{type(error).__name__}: {state.quote(str(error))}"
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
            return ServerUnreachable(server_id, f"no connection: {words}")
        case httpx2.TimeoutException():
            return ServerTimeout(server_id, words)
        case httpx2.SSEError() | httpx2.InvalidURL() | httpx2.UnsupportedProtocol() | httpx2.LocalProtocolError():
            return ProtocolViolation(server_id, words)
        case _:
            return ServerUnreachable(server_id, f"the connection broke: {words}")


def _stderr_tail(state: SessionState) -> str:
    return _exit_status(state) + (f"{LAST_WORDS}{state.quote(state.stderr[-600:])}" if state.stderr.strip() else "")


def _exit_status(state: SessionState) -> str:
    if state.was_stopped or state.exit_code is None:
        return ""
    if state.exit_code < 0:
        return f"; ended by {_signal_name(-state.exit_code)}, which Toolscale did not send"
    return f"; exit code {state.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
