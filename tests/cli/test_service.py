"""The client of a service: its address, its token, its tools over MCP, and the reasons of its errors in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp.types import CLIENT_INFO_META_KEY, INTERNAL_ERROR, INVALID_PARAMS

from shared.errors import ConfigInvalid, ServiceRejected, ServiceUnreachable, ToolscaleError
from shared.service.command_line import COMMAND_LINE
from tests.support.hostile.messages import failure
from tests.support.hostile.scripted_http import Exchange, scripted_http
from toolscale.client.service import Service, mcp_address

JSON, HTML = "application/json", "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/mcp/", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/mcp/dev", "http://127.0.0.1:8765/mcp/dev"),
        ("https://mcp.example.com", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com/mcp"),
        ("https://h/mcp-tools", "https://h/mcp-tools/mcp"),
        ("https://h/team/", "https://h/team/mcp"),
        ("http://[::1]:1", "http://[::1]:1/mcp"),
    ],
)
def test_the_address_of_mcp_follows_from_the_path_and_not_from_the_host(given: str, address: str) -> None:
    assert mcp_address(given) == address


@pytest.mark.parametrize("given", ["", "mcp.example.com", "http://[::", "ftp://h", "http://"])
def test_another_text_is_no_address(given: str) -> None:
    with pytest.raises(ConfigInvalid, match="expected the URL of a service"):
        Service(given)


@pytest.mark.parametrize(
    ("status", "body", "content_type", "error", "reason"),
    [
        (404, b'{"error": "There is no toolset nope for you."}', JSON, ServiceRejected, r"^There is no toolset nope"),
        (503, b'{"error": "Not now."}', JSON, ServiceUnreachable, r"^Not now\.$"),
        (401, b'{"error": "?"}', JSON, ServiceRejected, r"answered 401: .* catalog:read by --token"),
        (404, b"Not Found", "text/plain", ServiceRejected, r"does not offer this; run the command with the settings"),
        (503, b"<p>Not now</p>", HTML, ServiceUnreachable, r"/api/servers answered 503$"),
        (418, b"Tea", "text/plain", ServiceRejected, r"/api/servers answered 418: Tea$"),
        (200, b"<p>Hello</p>", HTML, ServiceRejected, r"/api/servers answers without JSON$"),
    ],
)
def test_an_error_of_a_service_is_its_reason_in_words(
    status: int, body: bytes, content_type: str, error: type[ToolscaleError], reason: str
) -> None:
    with (
        scripted_http(lambda exchange: exchange.send(status, body, content_type)) as server,
        Service(server.url, "token") as service,
        pytest.raises(error, match=reason),
    ):
        service.get("/api/servers", q=1)


@pytest.mark.parametrize("path", ["", "/", "/mcp", "/mcp/", "/mcp/some-toolset"])
def test_the_api_is_beside_the_path_of_mcp(path: str) -> None:
    with (
        scripted_http(lambda exchange: exchange.send_json({})) as server,
        Service(server.url.removesuffix("/mcp") + path, "secret") as service,
    ):
        service.get("/api/savings", period="7d", none=None)

    (request,) = server.seen
    assert request.path == "/api/savings?period=7d"
    assert request.headers["authorization"] == "Bearer secret"


def test_a_service_that_is_not_there_is_named() -> None:
    with (
        Service("http://127.0.0.1:1") as service,
        pytest.raises(ServiceUnreachable, match=r"^http://127\.0\.0\.1:1 does not answer"),
    ):
        service.servers()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(INVALID_PARAMS, ServiceRejected, id="an invalid argument"),
        pytest.param(INTERNAL_ERROR, ServiceUnreachable, id="a call that a stopping service cut off"),
    ],
)
def test_only_an_error_of_the_request_is_a_rejection(code: int, expected: type[ToolscaleError]) -> None:
    def respond(exchange: Exchange) -> None:
        exchange.send_json(failure(exchange.request_json, code, "some words"))

    with (
        scripted_http(respond) as server,
        Service(server.url) as service,
        pytest.raises(expected, match="some words"),
    ):
        service.call("find_tool", {})


def answered(*results: dict[str, Any], as_stream: bool = False) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Call a tool of a service with these results; return the requests and the result of the call."""
    left, requests = list(results), list[dict[str, Any]]()

    def respond(exchange: Exchange) -> None:
        requests.append(exchange.request_json)
        answer = {"jsonrpc": "2.0", "id": exchange.request_json["id"], "result": left.pop(0)}
        if not as_stream:
            exchange.send_json(answer)
            return
        progress: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
        events = "".join(f"event: message\r\ndata: {json.dumps(each)}\r\n\r\n" for each in (progress, answer))
        exchange.send(200, f": ping\r\n\r\n{events}".encode(), "text/event-stream")

    with scripted_http(respond) as server, Service(server.url) as service:
        return requests, service.call("call_tool", {"tool_name": "x"}, lambda question: question == "Really?")


@pytest.mark.parametrize("as_stream", [False, True])
def test_the_result_is_in_json_or_in_a_stream_of_events(as_stream: bool) -> None:
    _, result = answered({"content": [{"type": "text", "text": "é\u2028"}]}, as_stream=as_stream)

    assert result == {"content": [{"type": "text", "text": "é\u2028"}]}


def test_a_command_names_itself_so_that_its_answers_count_for_no_agent() -> None:
    (request,), _ = answered({"content": []})

    assert request["params"]["_meta"][CLIENT_INFO_META_KEY]["name"] == COMMAND_LINE


@pytest.mark.parametrize(("question", "action"), [("Really?", "accept"), ("Other?", "decline")])
def test_a_question_is_answered_with_the_state_of_the_call(question: str, action: str) -> None:
    asked = {
        "resultType": "input_required",
        "inputRequests": {"confirm": {"method": "elicitation/create", "params": {"message": question}}},
        "requestState": "half way",
    }

    (first, second), result = answered(asked, {"content": []})

    assert "requestState" not in first["params"]
    assert second["params"]["requestState"] == "half way"
    assert second["params"]["inputResponses"]["confirm"]["action"] == action
    assert result == {"content": []}


@pytest.mark.parametrize(
    ("meta", "error"), [({}, ServiceRejected), ({"dev.toolscale/temporary": True}, ServiceUnreachable)]
)
def test_an_error_result_is_temporary_if_it_states_so(meta: dict[str, Any], error: type[ToolscaleError]) -> None:
    def respond(exchange: Exchange) -> None:
        result = {"isError": True, "content": [{"type": "text", "text": "Not now."}], "_meta": meta}
        exchange.send_json({"jsonrpc": "2.0", "id": exchange.request_json["id"], "result": result})

    with scripted_http(respond) as server, Service(server.url) as service, pytest.raises(error, match="Not now"):
        service.ask("find_tool", {})
