"""The end of the query service for requests that come too late."""

from __future__ import annotations

from typing import Any, cast

import pytest
import uvicorn
from mcp import MCPError
from starlette.applications import Starlette

from query.server.shutdown import NOT_BEGUN, Drain, DrainedServer

pytestmark = pytest.mark.anyio


async def test_a_request_after_the_grace_gets_an_error_and_is_not_carried_out() -> None:
    drain = Drain()
    await drain.wait(DrainedServer(uvicorn.Config(Starlette()), drain, grace_s=0))

    async def call_next(_: Any) -> None:
        pytest.fail("the request was carried out")

    with pytest.raises(MCPError) as raised:
        await drain.answered(cast("Any", None), call_next)

    assert raised.value.message == NOT_BEGUN
