"""Searches over HTTP of a caller beside another one with many heavy requests in flight."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp import MCPError
from typing_extensions import override

from query.turns import Turns
from shared.catalog import Candidates, QueryVectors, Scope
from shared.toolset import Toolset
from tests.support.calling import text_of
from tests.support.fakes import FakeIndex
from tests.support.http_callers import URL, app_of, entry, http_client, mcp_client, static

pytestmark = pytest.mark.anyio

IN_FLIGHT = 16


class HeldIndex(FakeIndex):
    """Holds the searches of several steps until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.released = threading.Event(), threading.Event()

    @override
    def search(
        self, queries: Sequence[QueryVectors], scope: Scope, depth: int, corpus: Scope | None = None
    ) -> list[Candidates]:
        if len(queries) > 1:
            self.began.set()
            assert self.released.wait(60)
        return super().search(queries, scope, depth, corpus)


async def find(http: httpx2.AsyncClient, token: str, *steps: str) -> int:
    params = {"name": "find_tool", "arguments": {"tool_description": list(steps)}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
    return (await http.post("/mcp", json=request, headers=headers, timeout=60)).status_code


FULL = "ann has 0 waiting requests, as many as the limit per caller allows; call again in a few seconds"


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("query.turns._turns", Turns(most_waiting=0))


@pytest.mark.usefixtures("full")
async def test_a_caller_with_as_many_waiting_requests_as_it_may_have_gets_the_reason(tmp_path: Path) -> None:
    index = FakeIndex()
    index.put_toolset(Toolset(name="all", tools=("db",)))
    authentication = static(tmp_path / "tokens.toml", ann=entry("ann"))
    async with http_client(app_of(index, authentication), "ann") as http:
        async with mcp_client(http) as client:
            found = await client.call_tool("find_tool", {"tool_description": "read a file"})
        async with mcp_client(http, url=f"{URL}/all") as client:
            with pytest.raises(MCPError, match=FULL):
                await client.list_tools()
        page, listed = await http.get("/ui"), await http.get("/api/servers")

    assert (listed.status_code, listed.json()) == (503, {"error": FULL})
    assert (found.is_error, text_of(found)) == (True, FULL)
    assert page.status_code == 503
    assert FULL in page.text


async def test_a_light_caller_is_answered_while_another_has_many_heavy_searches_in_flight(tmp_path: Path) -> None:
    index, answered = HeldIndex(), list[tuple[str, int]]()
    authentication = static(tmp_path / "tokens.toml", light=entry("light"), heavy=entry("heavy"))

    async def ask(http: httpx2.AsyncClient, token: str, *steps: str) -> None:
        answered.append((token, await find(http, token, *steps)))

    async with http_client(app_of(index, authentication)) as http, anyio.create_task_group() as load:
        for token in ("light", "heavy"):  # both are active
            await find(http, token, "read a file")
        for number in range(IN_FLIGHT):
            load.start_soon(ask, http, "heavy", *[f"step {step} of {number}" for step in range(20)])
        assert await anyio.to_thread.run_sync(index.began.wait, 30)
        with anyio.move_on_after(30):
            await ask(http, "light", "read a file")
        index.released.set()

    assert answered == [("light", 200), *[("heavy", 200)] * IN_FLIGHT]
