"""Requests to a service: its address, its token, and the reasons of its errors in words."""

from __future__ import annotations

import json

import pytest

from shared.errors import ServiceRejected, ServiceUnreachable, ToolscaleError
from shared.settings import load_settings
from tests.support.hostile.scripted_http import scripted_http
from toolscale.client.advice import read_advice
from toolscale.client.requests import request_json
from toolscale.client.server_records import records_at

JSON, HTML = "application/json", "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("status", "body", "content_type", "error", "reason"),
    [
        (404, b'{"error": "There is no toolset nope for you."}', JSON, ServiceRejected, r"^There is no toolset nope"),
        (503, b'{"error": "Not now."}', JSON, ServiceUnreachable, r"^Not now\.$"),
        (401, b'{"error": "?"}', JSON, ServiceRejected, r"answered 401: .* catalog:read by --token"),
        (404, b"Not Found", "text/plain", ServiceRejected, r"/some/path answered 404: Not Found$"),
        (503, b"<p>Not now</p>", HTML, ServiceUnreachable, r"/some/path answered 503$"),
        (200, b"<p>Hello</p>", HTML, ServiceRejected, r"/some/path answers without JSON$"),
    ],
)
def test_an_error_of_a_service_is_its_reason_in_words(
    status: int, body: bytes, content_type: str, error: type[ToolscaleError], reason: str
) -> None:
    with (
        scripted_http(lambda exchange: exchange.send(status, body, content_type)) as server,
        pytest.raises(error, match=reason),
    ):
        request_json("GET", "/some/path?q=1", server.url, "token", permission="catalog:read")


@pytest.mark.parametrize("path", ["", "/", "/mcp", "/mcp/", "/mcp/some-toolset"])
def test_the_address_may_be_that_of_mcp_and_of_a_toolset(path: str) -> None:
    with scripted_http(lambda exchange: exchange.send_json({})) as server:
        address = server.url.removesuffix("/mcp") + path
        request_json("GET", "/ui/advice.json?days=7", address, "secret", permission="catalog:read")

    (request,) = server.seen
    assert request.path == "/ui/advice.json?days=7"
    assert request.headers["authorization"] == "Bearer secret"


def test_each_command_gives_the_reason_of_the_service() -> None:
    reason = {"error": "There is no such thing for you."}
    with scripted_http(lambda exchange: exchange.send(404, json.dumps(reason).encode())) as server:
        with pytest.raises(ServiceRejected, match=r"^There is no such thing for you\.$"):
            read_advice(load_settings(), "nope", None, server.url, None)

        assert records_at(server.url, None) is None


def test_a_service_that_is_not_there_and_an_invalid_address_are_named() -> None:
    for address in ("http://127.0.0.1:1", "http://[::"):
        with pytest.raises(ServiceUnreachable, match="does not answer"):
            request_json("GET", "/servers", address, None, permission="catalog:read")
