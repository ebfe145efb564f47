"""Requests of the command line to a service, outside of MCP."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx2

from shared.errors import ServiceRejected, ServiceUnreachable
from shared.quoting import printable

if TYPE_CHECKING:
    from query.caller import Permission

TIMEOUT_S = 60.0
MAX_REASON_CHARACTERS = 500

_MCP_PATH = re.compile(r"(/mcp(/[^/]*)?)?/?$")
_NEEDS_TOKEN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def request_json(
    method: str, path: str, url: str, token: str | None, body: object = None, *, permission: Permission
) -> Any:
    """Return the JSON of a service's response; None for an empty response. `permission` is that of the request.

    Raises:
        ServiceUnreachable: it does not answer, or with a server error.
        ServiceRejected: it rejects the request, or answers without JSON; the message has the reason.
    """
    return json_of(response_of(method, path, url, token, body, permission=permission))


def json_of(response: httpx2.Response) -> Any:
    """Return the JSON of a response; None for an empty response.

    Raises: the errors of `request_json`.
    """
    if not response.is_success:
        reason = _reason(response)
        raise ServiceUnreachable(reason) if response.is_server_error else ServiceRejected(reason)
    try:
        return response.json() if response.content else None
    except ValueError as error:
        raise ServiceRejected(f"{response.url.copy_with(query=None)} answers without JSON") from error


def response_of(
    method: str, path: str, url: str, token: str | None, body: object = None, *, permission: Permission
) -> httpx2.Response:
    """Return the response of a service, whose URL may be that of MCP.

    Raises:
        ServiceUnreachable: it does not answer.
        ServiceRejected: the token is missing or wrong.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    base = _MCP_PATH.sub("", url)
    try:
        with httpx2.Client(timeout=TIMEOUT_S, headers=headers, trust_env=False) as client:
            response = client.request(method, f"{base}{path}", json=body)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ServiceUnreachable(
            f"{base} does not answer: {type(error).__name__}; is `toolscale serve` running?"
        ) from error
    if response.status_code in _NEEDS_TOKEN:
        needed = f"pass a token with the permission {permission} by --token or TOOLSCALE_TOKEN"
        raise ServiceRejected(f"{base} answered {response.status_code}: {needed}")
    return response


def _reason(response: httpx2.Response) -> str:
    """Return the `error` of a JSON object, else the status and the text; a page of HTML has no text for people."""
    try:
        return printable(str(response.json()["error"])[:MAX_REASON_CHARACTERS])
    except (ValueError, TypeError, LookupError):
        is_page = "html" in response.headers.get("content-type", "")
        text = "" if is_page else f": {printable(response.text[:MAX_REASON_CHARACTERS])}"
        return f"{response.url.copy_with(query=None)} answered {response.status_code}{text}"
