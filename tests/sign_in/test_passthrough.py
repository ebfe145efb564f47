"""Headers of a caller's request that the operator passes on to one server."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import ValidationError
from starlette.requests import Request

from shared.upstream.auth import Auth
from shared.upstream.sign_ins import SecretKey, SignIns, SqliteEntries
from tests.support.calling import text_of
from tests.support.http_callers import http_client
from tests.support.ports import free_port
from tests.support.signing_in import called, signing_in
from tests.support.waiting import eventually

USER = {"permissions": ["catalog:read", "tools:call"]}
SENT = {"x-api-key": "key-of-ann", "x-other": "other", "cookie": "session=1"}


@contextmanager
def echoing_server() -> Generator[str]:
    """Run a server whose tool `whoami` returns the headers that it gets; yield its URL."""
    made = MCPServer("echo")

    @made.tool()
    def whoami(context: Context) -> str:
        request = context.request_context.request
        assert isinstance(request, Request)
        return " ".join(f"{name}={value}" for name, value in sorted(request.headers.items()))

    port = free_port()
    app = made.streamable_http_app()
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: running.started)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        running.should_exit = True
        thread.join(30)


@pytest.mark.process
@pytest.mark.anyio
async def test_named_headers_reach_their_server_and_no_other(tmp_path: Path) -> None:
    sign_ins = SignIns(SqliteEntries(tmp_path / "sign-ins.sqlite3"), SecretKey(None, tmp_path / "secret.key"))
    auth = {"passed": Auth(type="passthrough", headers=("X-Api-Key",))}
    with echoing_server() as url:
        urls = {"passed": url, "plain": url}
        service = signing_in(tmp_path, urls, sign_ins, {"ann": USER, "bob": USER}, auth)
        async with http_client(service.app):
            by_ann = text_of(await called(service, "ann", "passed:whoami", headers=SENT))
            by_bob = text_of(await called(service, "bob", "passed:whoami"))
            elsewhere = text_of(await called(service, "ann", "plain:whoami", headers=SENT))

    assert "x-api-key=***" in by_ann  # the server repeats it, and answers are masked
    assert not any(word in by_ann for word in ("x-other", "session=1", "authorization"))
    assert "x-api-key" not in by_bob
    assert "x-api-key" not in elsewhere


@pytest.mark.parametrize("name", ["Authorization", "cookie", "Host", "Mcp-Session-Id", "X-Forwarded-For"])
def test_headers_of_the_callers_own_connection_are_never_passed_on(name: str) -> None:
    with pytest.raises(ValidationError, match="never passed on"):
        Auth(type="passthrough", headers=(name,))
