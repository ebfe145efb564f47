"""Recognises that an HTTP server has lost a session: by any of the ways in which servers say so."""

from __future__ import annotations

import re
from http import HTTPStatus

from mcp import MCPError

from shared.upstream.session import HttpExchange, is_connection_lost

# A request with one of these was refused before it was carried out. After another status, or an error that only its
# words tell from that of a tool, it may have been: the tool may be what ended the session.
_REFUSING = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.GONE,
    HTTPStatus.PRECONDITION_FAILED,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.PRECONDITION_REQUIRED,
)
# The statuses that servers answer with instead of the 404 of the specification.
_SUSPECT = (*_REFUSING, HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE)
_SESSION = re.compile(r"session|transport|connection|client", re.IGNORECASE)
_LOST = re.compile(
    r"not (?:be )?(?:found|exist|known|valid|recogni[sz]ed)|un(?:known|recogni[sz]ed)|invalid|doesn't exist"
    r"|no (?:valid|such|longer|active)|expired|missing|required|terminated|closed|lost|gone|stale|dead|ended",
    re.IGNORECASE,
)
_NOT_INITIALIZED = re.compile(
    r"(?:not|un|before|must|please|to be) ?(?:yet |been |be |call |send )*initiali[sz]"
    r"|initiali[sz]\w* (?:first|required|again)",
    re.IGNORECASE,
)


def may_be_lost(error: MCPError, exchange: HttpExchange) -> bool:
    """Return whether the answer to a request within a session may mean that the server does not know the session."""
    if exchange.challenge and exchange.challenge.header:
        return False  # the server asks for other credentials
    return exchange.http_status in _SUSPECT or names_lost_session(error, exchange)


def is_refused(exchange: HttpExchange) -> bool:
    """Return whether a request in a lost session was certainly not carried out."""
    return exchange.http_status in _REFUSING


def names_lost_session(error: MCPError, exchange: HttpExchange) -> bool:
    """Return whether the server's words, in its error or in the body of a status, say that the session is lost."""
    if is_connection_lost(error):
        return False
    words = f"{exchange.words} {error.message}"
    return (_SESSION.search(words) is not None and _LOST.search(words) is not None) or (
        _NOT_INITIALIZED.search(words) is not None
    )
