"""A session is of one identity: other headers, or another sign-in, of the same caller have another session."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
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
from shared.errors import ServerFailed, SignInRequired
from shared.upstream.auth import SERVICE, Auth, Challenge, Requester
from shared.upstream.dial import Dialler
from shared.upstream.http import guarded_client
from shared.upstream.options import ServerOptions
from shared.upstream.session import SessionState
from shared.upstream.sign_ins import SecretKey, SignIn, SignIns, SqliteEntries
from shared.upstream.target import HttpTarget
from shared.upstream.tokens import AccessTokens
from tests.calling.test_sessions import SessionServer, until
from tests.sign_in.test_tokens import agreed
from tests.support.calling import PATIENT, catalogue_of, text_of, tool_of
from tests.support.hostile.messages import result
from tests.support.hostile.processes import good_http
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.oauth_server import protected_server

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HANDSHAKE = "2025-11-25"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Calls:
    """Calls of one server by requesters."""

    def __init__(
        self, target: HttpTarget, auth: Auth, directory: Path, version: str = HANDSHAKE, limits: CallLimits = PATIENT
    ) -> None:
        self.sign_ins = SignIns(SqliteEntries(directory / "sign-ins.sqlite3"), SecretKey(None, directory / "key"))
        self.url = target.url
        options = ServerOptions(auth=auth)
        self.dialler = Dialler(
            {"s": target}, frozenset(), None, {}, read_options=lambda _, __: options, sign_ins=self.sign_ins
        )
        self.upstreams = Upstreams(self.dialler.target, limits, self.dialler.authenticated)
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
            called, _ = await self.upstreams.call(send, [self.server], resources)
        assert isinstance(called, CallToolResult)
        return text_of(called)

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


async def test_a_sign_out_closes_the_connection_of_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("query.calling.connection.SIGN_IN_CHECKED_EVERY_S", 0.05)
    with good_http("legacy", program="session") as target:
        async with Calls(target, Auth(type="caller"), tmp_path).running() as calls:
            calls.sign_in("ann", "token-of-ann", since=1.0)
            first = await calls.text("ann", "recall")
            calls.sign_in("ann", "refreshed-token-of-ann", since=1.0)
            assert await calls.text("ann", "recall") == first
            calls.sign_ins.end("s", "ann")
            await until(lambda: not calls.upstreams.has_connections)


async def test_callers_of_a_server_that_assigns_sessions_have_each_their_own(tmp_path: Path) -> None:
    names = [f"caller{number}" for number in range(5)]
    with good_http("legacy", program="session") as target:
        async with Calls(target, Auth(type="caller"), tmp_path).running() as calls:
            for name in names:
                calls.sign_in(name, f"token-of-{name}", since=1.0)
            async with anyio.create_task_group() as tasks:  # at once, while nothing is known about the server
                for name in names:
                    tasks.start_soon(partial(calls.text, name, "remember", word=f"of-{name}"))
            remembered = {name: (await calls.text(name, "recall")).split(": ") for name in names}

    assert {name: words for name, (_, words) in remembered.items()} == {name: f"of-{name}" for name in names}
    assert len({session for session, _ in remembered.values()}) == len(names)


async def test_callers_of_a_server_without_sessions_share_a_connection_and_each_acts_as_himself(
    tmp_path: Path,
) -> None:
    names = [f"caller{number}" for number in range(200)]
    with protected_server() as server:
        limits = CallLimits(timeout_s=60, max_connections=2)
        calls = Calls(HttpTarget(server.url), Auth(type="caller"), tmp_path, "2026-07-28", limits)
        template = await agreed(server, "template", "template")
        for name in names[1:]:
            tokens = server.people.given(template.client, name, ["read"])
            calls.sign_in(name, tokens.access_token, since=1.0)
        answers: dict[str, str] = {}

        async def ask(name: str) -> None:
            try:
                answers[name] = await calls.text(name, "whoami")
            except SignInRequired:
                answers[name] = "has to sign in"

        async with calls.running():
            for _ in range(2):
                async with anyio.create_task_group() as tasks:
                    for name in names:
                        tasks.start_soon(ask, name)
                assert answers == {name: name for name in names} | {names[0]: "has to sign in"}
                answers.clear()


async def test_a_shared_connection_has_nothing_of_the_caller_who_opened_it(tmp_path: Path) -> None:
    script = SessionServer(assigns=False)
    script.answer = lambda exchange: exchange.send(
        200, json.dumps(result(exchange.request_json, {"content": [text(exchange)]})).encode(), set_cookie="user=1"
    )

    def text(exchange: Exchange) -> dict[str, str]:
        return {"type": "text", "text": f"{exchange.headers.get('authorization')} {exchange.headers.get('cookie')}"}

    with scripted_http(script) as server:
        async with Calls(HttpTarget(server.url), Auth(type="caller"), tmp_path).running() as calls:
            for name in ("ann", "bob"):
                calls.sign_in(name, f"token-of-{name}", since=1.0)
            masked = [await calls.text(name, "read") for name in ("ann", "bob", "eve", "ann")]
            calls.sign_ins.end("s", "ann")
            await calls.text("ann", "read")
        sent = [
            each.headers.get("authorization") for each in server.seen if each.method in ("initialize", "tools/call")
        ]

    ann, bob = "Bearer token-of-ann", "Bearer token-of-bob"
    assert sent == [ann, ann, bob, None, ann, None]
    assert masked == ["Bearer *** None", "Bearer *** None", "None None", "Bearer *** None"]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_request_outside_a_call_has_no_token_on_a_connection_that_callers_share(
    is_shared: bool, tmp_path: Path
) -> None:
    with scripted_http(lambda exchange: exchange.send(202)) as server:
        calls = Calls(HttpTarget(server.url), Auth(type="caller"), tmp_path)
        calls.sign_in("ann", "token-of-ann", since=1.0)
        target = calls.dialler.authenticated(HttpTarget(server.url), "s", {}, Requester("ann", {}, "ann"))
        assert isinstance(target, HttpTarget)
        state = SessionState("s", anyio.CancelScope(), is_shared=is_shared)
        async with guarded_client(target, 1_000, 5.0, state) as http:
            await http.post(server.url, json={})

    assert [each.headers.get("authorization") for each in server.seen] == [None if is_shared else "Bearer token-of-ann"]


async def test_the_tokens_of_one_caller_that_fail_end_the_call_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = AccessTokens.current

    async def failing(tokens: AccessTokens) -> str | None:
        if tokens.caller == "eve":
            raise ServerFailed("s", "its authorization server answers HTTP 500")
        return await current(tokens)

    monkeypatch.setattr(AccessTokens, "current", failing)
    script = SessionServer(assigns=False)
    outcomes: dict[str, str] = {}

    async def ask(calls: Calls, name: str) -> None:
        try:
            outcomes[name] = await calls.text(name, "read")
        except ServerFailed as error:
            outcomes[name] = f"{error.delivery.name}: {error.reason}"

    expected = {"eve": "NOT_SENT: its authorization server answers HTTP 500", "ann": "done", "bob": "done"}
    with scripted_http(script) as server:
        async with Calls(HttpTarget(server.url), Auth(type="caller"), tmp_path).running() as calls:
            for _ in range(2):  # eve opens the connection, or tries to; then she calls over that of the others
                async with anyio.create_task_group() as tasks:
                    for name in ("eve", "ann", "bob"):
                        tasks.start_soon(ask, calls, name)
                assert outcomes == expected
                outcomes.clear()

    assert script.calls == ["read"] * 4
    assert server.methods.count("initialize") == 1


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
