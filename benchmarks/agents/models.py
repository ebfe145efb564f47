"""What answers a request of an agent: an endpoint with chat completions, or a script in place of a model."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx2

from benchmarks.agents.tasks import Step, Task
from benchmarks.agents.toolboxes import CLIENT_SEARCH

Message = dict[str, Any]
Model = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], Awaitable[Message]]
"""Returns the next message of the assistant, given the messages so far and the offered tools."""

SCRIPT = "script"
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class ChatEndpoint:
    """An endpoint with OpenAI's chat completions."""

    url: str
    model: str
    http: httpx2.AsyncClient

    async def __call__(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        """Return the message of the first choice.

        Raises:
            httpx2.HTTPStatusError: the endpoint refused the request.
        """
        request = {"model": self.model, "messages": messages, "tools": tools}
        response = await self.http.post(f"{self.url.rstrip('/')}/chat/completions", json=request)
        response.raise_for_status()
        return cast("Message", response.json()["choices"][0]["message"])


@asynccontextmanager
async def endpoint(url: str, model: str, key: str) -> AsyncGenerator[ChatEndpoint]:
    """Yield the endpoint at this base URL, which a key opens."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
        yield ChatEndpoint(url, model, http)


class ScriptedAgent:
    """Calls the tools of a solution as soon as it was shown them; searches once for each, and else gives up."""

    def __init__(self, task: Task) -> None:
        self._steps = list(task.steps)
        self._searched: Step | None = None

    async def __call__(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        """Return a message with one call, or the last result as the answer."""
        offered = {tool["function"]["name"] for tool in tools}
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        if not self._steps:
            return {"role": "assistant", "content": results[-1]}
        step = self._steps[0]
        direct = step.tool.replace(":", "__")
        if direct in offered:
            self._steps.pop(0)
            return _call(direct, step.arguments, len(messages))
        if "call_tool" in offered and any(f'"{step.tool}"' in result for result in results):
            self._steps.pop(0)
            return _call("call_tool", {"tool_name": step.tool, "parameters": step.arguments}, len(messages))
        if self._searched is step or not offered & {CLIENT_SEARCH, "find_tool"}:
            return {"role": "assistant", "content": "I have no tool for this."}
        self._searched = step
        if CLIENT_SEARCH in offered:
            return _call(CLIENT_SEARCH, {"query": step.search}, len(messages))
        return _call("find_tool", {"tool_description": step.search}, len(messages))


def _call(tool: str, arguments: Mapping[str, Any], number: int) -> Message:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }
