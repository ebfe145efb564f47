"""Headers that repeat arguments, as clients of the newer revision send them over HTTP."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from mcp.types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types import HEADER_MISMATCH

from shared.catalog import Endpoint, ServerRecord
from shared.toolset import Toolset
from tests.support.calling import tool_of, upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested
from tests.support.hostile.processes import callable_stdio
from tests.support.http_callers import URL, app_of, http_client

pytestmark = pytest.mark.anyio

REVISION = "2026-07-28"
REGIONAL = tool_of("s", "echo", words={"type": "string", "x-mcp-header": "Words"})


def index_of_regional() -> FakeIndex:
    index = FakeIndex()
    index.upsert([ingested(REGIONAL, FakeEmbedder())])
    index.put_server(ServerRecord(server_id="s", endpoint=Endpoint(), tool_count=1, revision=1))
    index.put_toolset(Toolset(name="dev", tools=("s",)))
    return index


def posted(arguments: dict[str, Any], **headers: str) -> httpx2.Request:
    meta = {
        PROTOCOL_VERSION_META_KEY: REVISION,
        CLIENT_CAPABILITIES_META_KEY: {},
        CLIENT_INFO_META_KEY: {"name": "test", "version": "1"},
    }
    params = {"name": "s__echo", "arguments": arguments, "_meta": meta}
    named = {"mcp-protocol-version": REVISION, "mcp-method": "tools/call", "mcp-name": "s__echo"}
    accept = {"accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return httpx2.Request("POST", f"{URL}/dev", json=body, headers={**accept, **named, **headers})


@pytest.mark.parametrize("headers", [{}, {"mcp-param-words": "farewell"}])
async def test_a_direct_call_whose_headers_do_not_repeat_its_arguments_is_refused(headers: dict[str, str]) -> None:
    upstreams = upstreams_to({"s": callable_stdio()})
    async with http_client(app_of(index_of_regional(), None, upstreams)) as http:
        answer = await http.send(posted({"words": "hello"}, **headers))

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == HEADER_MISMATCH
