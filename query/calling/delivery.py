"""How far a call got before its connection ended, or an HTTP status came in place of a result."""

from __future__ import annotations

from http import HTTPStatus

from shared.errors import Delivery, ServerAuthRequired, ServerError, ServerFailed, ServerTimeout, ServerUnreachable
from shared.upstream.session import HttpExchange

PERHAPS_CARRIED_OUT = "may have been carried out or not"

_REJECTED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
# a proxy answers so after its server was removed
_NO_SERVER = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE)
NOT_FROM_THE_TOOL = (*_REJECTED, *(status for status in HTTPStatus if status >= HTTPStatus.INTERNAL_SERVER_ERROR))
_WITHOUT_ANSWER = (ServerUnreachable, ServerTimeout, ServerFailed, ServerAuthRequired)


def delivery_at_end(error: ServerError, exchange: HttpExchange) -> Delivery:
    """Return the delivery of a call whose connection ended; a rejected answer is an answer."""
    if not exchange.sent:
        return Delivery.NOT_SENT
    if exchange.http_status is not None:
        return delivery_of_status(exchange.http_status)
    return Delivery.UNKNOWN if isinstance(error, _WITHOUT_ANSWER) else Delivery.ANSWERED


def delivery_of_status(status: int) -> Delivery:
    """Return the delivery of a call that got this error status, and no answer of the tool."""
    return Delivery.NOT_SENT if status in _REJECTED or status in _NO_SERVER else Delivery.UNKNOWN
