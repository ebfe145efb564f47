from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
from mcp import Client
from mcp.types import CallToolResult, TextContent, Tool

from query.auth.authentication import Authentication, Resource
from query.caller import Caller, Permission
from query.mcp import build_server
from query.tool import ToolCallContext, ToolHandler
from shared.service.logging import MAX_LINES, PER_S, LineLimit
from shared.upstream.followed_config import FollowedConfig
from shared.upstream.mcp_json import EntryProblem
from tests.support.fakes import FakeIndex
from tests.support.http_callers import Unreachable, app_of, entry, http_client, mcp_client, static

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])

RESOURCE = Resource("https://tools.example.org/mcp", "https://login.example.org/realm")
PING: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture
def known(tmp_path: Path) -> Authentication:
    return static(tmp_path / "tokens.toml", alice=entry("good"), robot=entry("weak", permissions=["tools:call"]))


async def post(authentication: Authentication | None, token: str | None) -> httpx2.Response:
    async with http_client(app_of(FakeIndex(), authentication), token) as http:
        return await http.post("/mcp", json=PING, headers=ACCEPT)


@both_eras
async def test_a_client_that_shows_its_token_finds_tools(known: Authentication, mode: str) -> None:
    async with http_client(app_of(FakeIndex(), known), "good") as http, mcp_client(http, mode) as client:
        result = await client.call_tool("find_tool", {"tool_description": "time"})

    assert not result.is_error


@pytest.mark.parametrize("token", [None, "bad", "Good", "a.b.c", "x" * 20_000])
async def test_without_a_token_that_opens_something_the_answer_is_401(known: Authentication, token: str | None) -> None:
    answer = await post(known, token)
    async with http_client(app_of(FakeIndex(), known)) as http:
        basic = await http.post("/mcp", json=PING, headers=ACCEPT | {"authorization": "Basic good"})

    assert answer.status_code == basic.status_code == 401
    assert answer.headers["www-authenticate"].startswith('Bearer error="invalid_token"')


async def test_a_token_that_may_not_read_the_catalogue_gets_403(known: Authentication) -> None:
    answer = await post(known, "weak")

    assert answer.status_code == 403
    assert answer.headers["www-authenticate"].startswith('Bearer error="insufficient_scope"')


async def test_whoever_is_refused_hears_where_tokens_are_issued(known: Authentication) -> None:
    authentication = Authentication(known.static, resource=RESOURCE)
    async with http_client(app_of(FakeIndex(), authentication)) as http:
        refused = await http.post("/mcp", json=PING)
        metadata = await http.get("/.well-known/oauth-protected-resource/mcp")

    where = 'resource_metadata="https://tools.example.org/.well-known/oauth-protected-resource/mcp"'
    assert where in refused.headers["www-authenticate"]
    said: dict[str, Any] = metadata.json()
    assert said["resource"] == RESOURCE.url
    assert said["authorization_servers"] == [RESOURCE.issuer]
    assert said["scopes_supported"] == ["catalog:read", "tools:call"]


async def test_while_the_keys_cannot_be_fetched_nobody_is_told_that_the_token_is_bad() -> None:
    answer = await post(Unreachable(resource=RESOURCE), "a.b.c")

    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD"])
async def test_only_post_is_answered_at_the_mcp_path(known: Authentication, method: str) -> None:
    async with http_client(app_of(FakeIndex(), known), "good") as http:
        answer = await http.request(method, "/mcp", headers=ACCEPT)

    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("header", "status"), [({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403)]
)
async def test_a_web_page_that_was_led_to_this_port_is_refused(header: dict[str, str], status: int) -> None:
    async with http_client(app_of(FakeIndex())) as http:
        assert (await http.post("/mcp", json=PING, headers=ACCEPT | header)).status_code == status


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_is_told_to_everyone(known: Authentication, path: str) -> None:
    async with http_client(app_of(FakeIndex(), known)) as http:
        assert (await http.get(path)).status_code == 200


async def test_readiness_has_the_followed_file_and_with_authentication_only_numbers(known: Authentication) -> None:
    left_out = EntryProblem(name="docs", reason="the environment variable KEY is not set")
    followed = FollowedConfig(path="/home/ann/mcp.json", servers=2, left_out=(left_out,))

    async with http_client(app_of(FakeIndex(), followed=followed)) as http:
        without = (await http.get("/readyz")).json()
    async with http_client(app_of(FakeIndex(), known, followed=followed)) as http:
        with_authentication = (await http.get("/readyz")).json()

    assert without == {"status": "ready", "mcp_json": followed.model_dump(mode="json")}
    assert with_authentication == {"status": "ready", "mcp_json": {"servers": 2, "left_out": 1, "is_usable": True}}


async def test_a_refusal_is_logged_with_its_reason_and_never_with_the_token(known: Authentication) -> None:
    with structlog.testing.capture_logs() as lines:
        await post(known, "some-secret")

    (line,) = lines
    assert (line["event"], line["reason"], line["client"]) == (
        "authentication_failed",
        "the token is unknown",
        "127.0.0.1",
    )
    assert "secret" not in json.dumps(lines)


def test_a_storm_of_refusals_is_a_few_lines_and_a_number() -> None:
    now_s = [0.0]
    known = Authentication(refusals=LineLimit(clock_s=lambda: now_s[0]))

    with structlog.testing.capture_logs() as lines:
        for _ in range(1_000):
            known.log_refusal("the token is unknown", "192.0.2.1")
        now_s[0] = PER_S
        known.log_refusal("the token is unknown", "192.0.2.1")

    assert [line["left_out"] for line in lines] == [0] * MAX_LINES + [1_000 - MAX_LINES]


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_failure_of_ours_is_answered_without_its_words(tmp_path: Path, era: str) -> None:
    class Broken(FakeIndex):
        def servers(self, *, newer_than: int = 0) -> list[Any]:
            raise RuntimeError("secret detail")

    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": era,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params: dict[str, Any] = {"name": "find_tool", "arguments": {"tool_description": "x"}, "_meta": meta}
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = ACCEPT | {"mcp-protocol-version": era, "mcp-method": "tools/call", "mcp-name": "find_tool"}
    async with http_client(app_of(Broken(), static(tmp_path / "t", a=entry("good"))), "good") as http:
        answer = await http.post("/mcp", json=call, headers=headers)

    assert answer.json()["error"]["code"] == -32603
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


class Done(ToolHandler):
    """A tool whose result names itself and its caller."""

    def __init__(self, name: str, permission: Permission) -> None:
        self.tool = Tool(name=name, input_schema={"type": "object"})
        self.permission = permission

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return both names."""
        done = {"done": self.tool.name, "for": context.caller.name}
        return CallToolResult(content=[], structured_content=done)


@both_eras
async def test_a_tool_that_a_caller_may_not_use_is_neither_listed_nor_run(mode: str) -> None:
    ann = Caller("ann", permissions=frozenset({"catalog:read"}))
    tools = [Done("read", "catalog:read"), Done("act", "tools:call")]
    async with Client(build_server(tools, lambda _: ann), mode=mode) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        refused = await client.call_tool("act", {})
        answered = await client.call_tool("read", {})

    (said,) = refused.content
    assert listed == ["read"]
    assert refused.is_error
    assert isinstance(said, TextContent)
    assert "tools:call" in said.text
    assert answered.structured_content == {"done": "read", "for": "ann"}
