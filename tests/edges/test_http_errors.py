"""The message of an HTTP error shows the cause in its body, short and masked."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.errors import ProtocolViolation, ServerAuthRequired, ServerError
from shared.upstream.error_bodies import cause_in
from shared.upstream.target import HttpTarget
from tests.support.calling import calling, text_of, tool_of
from tests.support.hostile.scripted_http import Exchange, Respond, scripted_http
from tests.support.hostile.scripts import on_call
from tests.support.profiles import examples
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = pytest.mark.process

LIMITS = Limits(timeout_s=60)
SECRET = "s3cret-in-a-header"
PAGE = """<!DOCTYPE html><html><head><style>a { color: red }</style>
<title>Access denied | corp &amp; sons</title></head><body><h1>Error 1020</h1></body></html>"""

JSON = "application/json"
BODIES: dict[str, tuple[str, str, str]] = {
    "a message": (JSON, '{"message": "region eu-9 is unknown"}', "region eu-9 is unknown"),
    "an error": (JSON, '{"error": "quota of plan Free is used up"}', "quota of plan Free"),
    "an error within": (JSON, '{"error": {"code": 7, "message": "no such workspace"}}', "no such workspace"),
    "a list of errors": (JSON, '{"errors": [{"message": "field q is missing"}]}', "field q is missing"),
    "details of a framework": (JSON, '{"detail": [{"loc": ["q"], "msg": "field required"}]}', "field required"),
    "OAuth": (JSON, '{"error": "invalid_request", "error_description": "no resource"}', "no resource"),
    "a problem": ("application/problem+json", '{"title": "Forbidden", "detail": "IP not listed"}', "IP not listed"),
    "capitals": (JSON, '{"Message": "the stage is not deployed"}', "the stage is not deployed"),
    "a string": (JSON, '"service is migrating"', "service is migrating"),
    "JSON without a type": ("text/plain", '{"detail": "tenant is suspended"}', "tenant is suspended"),
    "JSON without a message": (JSON, '{"code": "E4711"}', "E4711"),
    "JSON that is cut": (JSON, '{"message": "too many rows", "rows": [' + "0, " * 5_000 + "0]}", "too many rows"),
    "plain text": ("text/plain", "upstream connect error: no healthy upstream", "no healthy upstream"),
    "text without a type": ("", "the gateway has no route", "no route"),
    "a page": ("text/html; charset=utf-8", PAGE, "Access denied | corp & sons"),
    "a page without title": ("text/html", "<html><body><center><h1>Bad Route</h1></center></body></html>", "Bad Route"),
    "a page with a poor title": ("text/html", "<title>500</title><h1>The pool is empty</h1>", "The pool is empty"),
    "a page with an empty title": ("text/html", "<title> </title><p>No route</p>", "No route"),
    "XML": ("application/xml", "<Error><Code>X</Code><Message>bucket is gone</Message></Error>", "bucket is gone"),
    "another encoding": ("text/plain; charset=latin-1", "caf\u00e9 ferm\u00e9", "ferm"),
}
NESTED_TEXTS = st.recursive(
    st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
).map(json.dumps)


def refusing(status: int, body: str, content_type: str = "text/plain", **headers: str) -> Respond:
    content = body.encode("latin-1" if "latin" in content_type else "utf-8")
    return lambda exchange: exchange.send(status, content, content_type, **headers)


def error_of(respond: Respond) -> ServerError:
    with scripted_http(respond) as server, pytest.raises(ServerError) as refused:
        fetch_tools_blocking("srv", HttpTarget(server.url, headers={"Authorization": f"Bearer {SECRET}"}), LIMITS)
    return refused.value


@pytest.mark.parametrize("status", [400, 403, 404, 500])
@pytest.mark.parametrize("name", BODIES)
def test_an_error_shows_the_cause_in_its_body(name: str, status: int) -> None:
    content_type, body, cause = BODIES[name]

    error = error_of(refusing(status, body, content_type))

    assert f"HTTP {status}" in error.reason
    assert cause in error.reason
    assert "<" not in error.reason
    assert "credential" not in error.reason
    assert len(error.reason) < 400


@pytest.mark.anyio
@pytest.mark.parametrize("status", [403, 404, 422, 502])
async def test_the_error_of_a_call_shows_it_too(status: int) -> None:
    respond = on_call(refusing(status, '{"error": {"message": "no such workspace"}}', "application/json"))
    with scripted_http(respond) as server:
        async with calling({"srv": HttpTarget(server.url)}, tool_of("srv", "one")) as client:
            result = await client.call_tool("call_tool", {"tool_name": "one", "parameters": {}})

    assert "no such workspace" in text_of(result)
    assert "credential" not in text_of(result)


def test_a_page_in_place_of_an_answer_shows_its_title() -> None:
    error = error_of(refusing(200, PAGE, "text/html"))

    assert "Access denied | corp & sons" in error.reason


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (401, "", {}),
        (401, PAGE, {}),
        (403, "", {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}),
        (403, '{"message": "Invalid API key"}', {}),
        (403, "token expired", {}),
        (403, '{"error": "unauthorized_client"}', {}),
        (403, "<title>Log in to continue</title>", {}),
    ],
)
def test_credentials_are_blamed_where_the_server_does(status: int, body: str, headers: dict[str, str]) -> None:
    error = error_of(refusing(status, body, **headers))

    assert isinstance(error, ServerAuthRequired)
    assert "credentials" in error.reason


@pytest.mark.parametrize("body", ["", "CSRF token missing", "Origin not allowed", "<title>Author: nginx</title>", PAGE])
def test_credentials_are_not_blamed_for_another_refusal(body: str) -> None:
    error = error_of(refusing(403, body))

    assert isinstance(error, ProtocolViolation)
    assert "credential" not in error.reason


ECHOES = {
    "as it is": SECRET,
    "in JSON": json.dumps({"error": f"bad header Bearer {SECRET}"}),
    "escaped in JSON": json.dumps({"message": "".join(f"\\u{ord(sign):04x}" for sign in SECRET)}).replace("\\\\", "\\"),
    "escaped in a page": "<title>" + "".join(f"&#{ord(sign)};" for sign in SECRET) + "</title>",
    "at the cut": "x" * 290 + SECRET,
}


@pytest.mark.parametrize("name", ECHOES)
@pytest.mark.parametrize("status", [400, 401, 500])
def test_a_credential_in_a_body_is_masked(name: str, status: int) -> None:
    error = error_of(refusing(status, ECHOES[name]))

    assert f"HTTP {status}" in error.reason
    assert "s3cret" not in error.reason


def test_a_body_that_never_ends_does_not_delay_the_error_for_long() -> None:
    def respond(exchange: Exchange) -> None:
        exchange.begin(500, "text/plain", content_length="100000")
        exchange.wfile.write(b"the database is full")
        exchange.wfile.flush()
        exchange.hang()

    assert "the database is full" in error_of(respond).reason


@settings(max_examples=examples(300), deadline=None)
@given(st.text() | NESTED_TEXTS)
@example("[" * 4_000)
@example('{"error":' * 500)
@example('{"message": "\\')
@example("<title" * 700)
@example('{"message": "\\ud800"}')
def test_any_body_has_a_cause_of_one_line_or_none(body: str) -> None:
    cause = cause_in(body)

    assert cause == " ".join(cause.split())
