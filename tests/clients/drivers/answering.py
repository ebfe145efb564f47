"""Plays requests from stdin on a session of a client library: one JSON object a line, and one for its reply.

A driver runs in the environment of its library, which lacks the packages of this repository.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """The text that a model gets, and whether it is an error; None if the library does not show that."""

    text: str
    is_error: bool | None


@dataclass(frozen=True, slots=True)
class Session:
    """The two operations of an agent: the names of all tools, and a call."""

    list_tools: Callable[[], Awaitable[list[str]]]
    call_tool: Callable[[str, dict[str, Any]], Awaitable[Result]]


Connect = Callable[[dict[str, Any]], AbstractAsyncContextManager[Session]]
"""Opens a session with a target: `url`, or `command`, `args` and `env`."""


def answer(connect: Connect) -> None:
    """Play the requests until stdin ends, with the target of the command line."""
    asyncio.run(_answer(connect, json.loads(sys.argv[1])))


async def _answer(connect: Connect, target: dict[str, Any]) -> None:
    async with connect(target) as session:
        tasks: dict[int, asyncio.Task[None]] = {}
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            if request["do"] == "cancel":
                tasks[request["id"]].cancel()
            else:
                tasks[request["id"]] = asyncio.create_task(_play(session, request))


async def _play(session: Session, request: dict[str, Any]) -> None:
    try:
        reply = await _reply(session, request)
    except asyncio.CancelledError:
        reply = {"cancelled": True}
    except Exception as error:  # noqa: BLE001  # it would end an agent, and the reply states that
        reply = {"raised": f"{type(error).__name__}: {error}"}
    print(json.dumps({"id": request["id"], **reply}), flush=True)  # noqa: T201


async def _reply(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "list":
        return {"tools": await session.list_tools()}
    result = await session.call_tool(request["name"], request["arguments"])
    return {"text": result.text, "is_error": result.is_error}
