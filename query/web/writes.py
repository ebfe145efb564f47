"""What changes or calls from the page: only a form of a page of this service, and one of each page.

A browser sends a form to any address, also to loopback, with the login that it remembers. So a form needs the `Origin`
of this service, no other `Sec-Fetch-Site`, and a token that a page of the same caller has shown.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import anyio.to_thread
from starlette.exceptions import HTTPException

from shared.errors import CursorInvalid, CursorsUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import Headers
    from starlette.requests import Request

    from query.caller import Caller
    from query.kept import Kept
    from query.listener import HttpListener

Form = dict[str, list[str]]

TOKEN_S = 12 * 3_600.0
"""Seconds for which a form may stay open."""
MAX_FORM_BYTES = 1 << 20
MAX_FIELDS = 2_000
_TOPIC = "page"

ELSEWHERE = "This came from a page of another origin, or from no page. Send the form of a page of this service"
USED = "This form was sent before, or its page is too old. Load the page again"


def page_token(caller: Caller, kept: Kept) -> str:
    """Return a new token for the forms of a page; empty, which no form can use, where the store does not answer."""
    with suppress(CursorsUnavailable):
        return kept.put(b"", caller.name, _TOPIC, ttl_s=TOKEN_S)
    return ""


async def checked_form(request: Request, caller: Caller, listener: HttpListener, kept: Kept) -> Form:
    """Return the fields of a form that a page of this service has sent, and use its token up.

    Raises:
        HTTPException: 403, it comes from elsewhere, or was sent before; 413, it is too large; 503, no store answers.
    """
    if not is_of_this_service(request.headers, listener.public_address):
        raise HTTPException(403, ELSEWHERE)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, f"Expected at most {MAX_FORM_BYTES} bytes")
    try:
        form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise HTTPException(400, "Expected a form") from error
    try:
        await anyio.to_thread.run_sync(kept.take, field(form, "token"), caller.name, _TOPIC)
    except CursorInvalid as error:
        raise HTTPException(403, USED) from error
    except CursorsUnavailable as error:
        raise HTTPException(503, "Forms cannot be checked at the moment") from error
    return form


def is_of_this_service(headers: Headers, public_address: str | None) -> bool:
    """Return whether a request says that a page at this very host and port sent it.

    `Origin` is required: browsers send it with each form, and a page of another port of this machine has another one.
    """
    origin = urlsplit(headers.get("origin", ""))
    own = {headers.get("host", ""), urlsplit(public_address or "").netloc} - {""}
    is_own = origin.scheme in ("http", "https") and origin.netloc in own
    return is_own and headers.get("sec-fetch-site", "same-origin") == "same-origin"


def field(form: Mapping[str, list[str]], name: str) -> str:
    """Return the last value of a field, empty where the form has none."""
    return form.get(name, [""])[-1]
