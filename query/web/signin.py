"""Authentication of the page: the bearer token of MCP, or the same token as the password of HTTP Basic."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from query.auth.http import LEAST, caller_of
from query.caller import ANYONE
from query.web.page import Page, message_page
from shared.errors import AuthenticationFailed, KeysUnavailable

if TYPE_CHECKING:
    from starlette.requests import Request

    from query.auth.authentication import Authentication
    from query.auth.http import AuthFailureLog
    from query.caller import Caller

# The browser sends the password in UTF-8, independent of the page's encoding (RFC 7617).
CHALLENGE = {"WWW-Authenticate": 'Basic realm="Toolscale", charset="UTF-8"'}

SIGN_IN = message_page(401, "Sign in", "Give any user name, and your Toolscale token as the password.", CHALLENGE)
NOT_ALLOWED = message_page(403, "Not allowed", f"This token lacks the permission {LEAST}.")
NOT_NOW = message_page(503, "Not now", "Your token cannot be checked at the moment. Try again in a few seconds.")


class SignIn:
    """Authenticates every request, so that a withdrawn token is refused at once."""

    def __init__(self, authentication: Authentication | None, failures: AuthFailureLog) -> None:
        """Without authentication, every request is allowed."""
        self._authentication, self._failures = authentication, failures

    async def caller(self, request: Request) -> Caller | Page:
        """Return the caller, or the page that refuses the request."""
        known = caller_of(request.scope)  # the operator, by the secret of this process
        if known or self._authentication is None:
            return known or ANYONE
        token = presented_token(request.headers.get("authorization", ""))
        if token is None:
            return SIGN_IN
        try:
            caller = await self._authentication.caller(token)
        except AuthenticationFailed as error:
            self._failures.log(str(error), request.client.host if request.client else None)
            return SIGN_IN
        except KeysUnavailable:
            return NOT_NOW
        return caller if LEAST in caller.permissions else NOT_ALLOWED


def presented_token(authorization: str) -> str | None:
    """Return the token of an Authorization header: a bearer token, or the password, else user name, of HTTP Basic."""
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            name, _, password = _decoded(value).partition(":")
            return password or name
        case _:
            return None


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value.strip(), validate=True).decode("utf-8", "surrogateescape")
    except (ValueError, binascii.Error):
        return ""
