"""A session is of one identity: other headers, or another sign-in, of the same caller have another session."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import anyio
import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp.types import CallToolResult

from query.calling.call import tool_call
from query.calling.limits import CallLimits
from query.calling.sessions import CallResources, Progress
from query.calling.upstreams import Upstreams
from shared.upstream.auth import SERVICE, Auth, Challenge, Requester
from shared.upstream.dial import Dialler
from shared.upstream.options import ServerOptions
from shared.upstream.sign_ins import SecretKey, SignIn, SignIns, SqliteEntries
from shared.upstream.target import HttpTarget
from tests.support.calling import catalogue_of, text_of, tool_of
from tests.support.hostile.processes import good_http

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HANDSHAKE = "2025-11-25"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Calls:
    """Calls of one server by requesters."""

    def __init__(self, target: HttpTarget, auth: Auth, directory: Path, version: str = HANDSHAKE) -> None:
        self.sign_ins = SignIns(SqliteEntries(directory / "sign-ins.sqlite3"), SecretKey(None, directory / "key"))
        self.url = target.url
        options = ServerOptions(auth=auth)
        self.dialler = Dialler(
            {"s": target}, frozenset(), None, {}, read_options=lambda *_: options, sign_ins=self.sign_ins
        )
        self.upstreams = Upstreams(self.dialler.target, CallLimits(timeout_s=30), self.dialler.authenticated)
        server = catalogue_of([tool_of("s", "any")], version).index.server("s")
        assert server
        self.server = server

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Calls]:
        async with self.upstreams.running():
            yield self

    async def text(self, caller: str, tool: str, headers: Mapping[str, str] = NO_HEADERS, **parameters: object) -> str:
        """Return the text of a tool's result, in a call with these headers."""
        requester = Requester(caller, headers, caller)
        with self.upstreams.admission.admitted(caller) as slot:
            resources = CallResources(Progress(_ignored), slot, requester)
            send = tool_call(tool_of("s", tool).definition, parameters)
            result, _ = await self.upstreams.call(send, [self.server], resources)
        assert isinstance(result, CallToolResult)
        return text_of(result)

    def sign_in(self, caller: str, token: str, since: float) -> None:
        """Store a sign-in of a caller, or its refreshed token."""
        self.sign_ins.put(
            SignIn(
                server_id="s",
                caller=caller,
                url=self.url,
                client=OAuthClientInformationFull(client_id="c"),
                tokens=OAuthToken(access_token=token),
                since=since,
                renewed_at=time.time(),
            )
        )

    async def has_tool(self, caller: str, tool: str, headers: Mapping[str, str]) -> bool:
        """Return whether the server has the tool in the session of a call with these headers alone."""
        requester = Requester(caller, headers, caller)
        return await self.upstreams.session_tool(tool, self.server, requester) is not None


async def _ignored(*_: object) -> None: ...


async def test_a_user_of_a_platform_has_no_session_of_another_of_its_users(tmp_path: Path) -> None:
    auth = Auth(type="passthrough", headers=("X-Api-Key",))
    ann, bob = {"x-api-key": "key-of-ann"}, {"x-api-key": "key-of-bob"}
    with good_http("legacy", program="session") as target:
        async with Calls(target, auth, tmp_path).running() as calls:
            anns = await calls.text("platform", "remember", ann, word="secret")
            await calls.text("platform", "enable", ann)
            with anyio.fail_after(30):
                has_tool = False
                while not has_tool:  # the server's announcement comes aside
                    await anyio.sleep(0.01)
                    has_tool = await calls.has_tool("platform", "hidden", ann)
            bob_has_tool = await calls.has_tool("platform", "hidden", bob)
            bobs = await calls.text("platform", "recall", bob)
            again = await calls.text("platform", "recall", ann)

    assert not bob_has_tool
    assert "secret" not in bobs
    assert again == anns


@pytest.mark.parametrize("auth_type", ["service", "caller"])
async def test_a_session_ends_with_the_sign_in_that_it_began_with_and_outlives_a_refresh(
    auth_type: Literal["service", "caller"], tmp_path: Path
) -> None:
    owner = "ann" if auth_type == "caller" else SERVICE
    with good_http("legacy", program="session") as target:  # it never asks for a token, and knows sessions alone
        async with Calls(target, Auth(type=auth_type), tmp_path).running() as calls:
            calls.sign_in(owner, "token-of-first", since=1.0)
            first = await calls.text("ann", "remember", word="secret")
            calls.sign_in(owner, "refreshed-token-of-first", since=1.0)
            refreshed = await calls.text("ann", "recall")
            calls.sign_ins.end("s", owner)
            without = await calls.text("ann", "recall")
            calls.sign_in(owner, "token-of-second", since=2.0)
            second = await calls.text("ann", "recall")

    assert first == refreshed
    assert "secret" not in without
    assert "secret" not in second
    assert without != second


async def test_the_tokens_of_a_session_are_of_the_sign_in_that_it_began_with(tmp_path: Path) -> None:
    calls = Calls(HttpTarget("http://127.0.0.1:9/mcp"), Auth(type="caller"), tmp_path)
    calls.sign_in("ann", "token-of-first", since=1.0)
    target = calls.dialler.authenticated(HttpTarget(calls.url), "s", {}, Requester("ann", {}, "ann"))
    assert isinstance(target, HttpTarget)
    assert target.tokens
    await target.tokens.identity()

    calls.sign_in("ann", "refreshed-token-of-first", since=1.0)
    refreshed = await target.tokens.current()
    calls.sign_in("ann", "token-of-second", since=2.0)

    assert refreshed == "refreshed-token-of-first"
    assert await target.tokens.current() is None
    assert await target.tokens.after_refusal("token-of-first", Challenge(401)) is None
