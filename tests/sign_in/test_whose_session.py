"""A session is of one identity: other headers, or another sign-in, of the same caller have another session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import anyio
import pytest
from mcp.types import CallToolResult

from query.calling.call import tool_call
from query.calling.limits import CallLimits
from query.calling.sessions import CallResources, Progress
from query.calling.upstreams import Upstreams
from shared.upstream.auth import Auth, Requester
from shared.upstream.dial import Dialler
from shared.upstream.options import ServerOptions
from shared.upstream.sign_ins import SecretKey, SignIns, SqliteEntries
from shared.upstream.target import HttpTarget
from tests.support.calling import catalogue_of, options_of, text_of, tool_of
from tests.support.hostile.processes import good_http

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HANDSHAKE = "2025-11-25"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Calls:
    """Calls of one server by requesters."""

    def __init__(self, target: HttpTarget, auth: Auth, directory: Path, version: str = HANDSHAKE) -> None:
        self.sign_ins = SignIns(SqliteEntries(directory / "sign-ins.sqlite3"), SecretKey(None, directory / "key"))
        options = options_of({"s": ServerOptions(auth=auth)})
        dialler = Dialler({"s": target}, frozenset(), None, {}, read_options=options, sign_ins=self.sign_ins)
        self.upstreams = Upstreams(dialler.target, CallLimits(timeout_s=30), dialler.authenticated)
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
