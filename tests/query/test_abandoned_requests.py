"""A request that is answered without a stream ends when its client closes the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from query.streaming import CallsStreamed

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

pytestmark = pytest.mark.anyio

BODY = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'


async def test_a_request_whose_client_has_left_is_cancelled() -> None:
    began, ended = anyio.Event(), anyio.Event()
    messages: list[Message] = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def waiting(_: Scope, __: Receive, ___: Send) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await began.wait()
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        pass

    with anyio.fail_after(30):
        await CallsStreamed(waiting, waiting)({"type": "http", "method": "POST", "headers": []}, receive, send)

    assert ended.is_set()
