"""Searches over HTTP of a caller beside another one with many heavy requests in flight."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from typing_extensions import override

from shared.catalog import Candidates, QueryVectors, Scope
from tests.support.fakes import FakeIndex
from tests.support.http_callers import app_of, entry, http_client, static

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
