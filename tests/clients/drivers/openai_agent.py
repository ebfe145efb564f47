"""OpenAI's Agents SDK: each call is a run of an agent, whose scripted model calls the tool in strict mode."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from answering import Result, Session, answer
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class OneCall(Model):
    """A model that calls this tool, and ends the run with the tool's output."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self._call = {"name": name, "arguments": json.dumps(arguments)}

    async def get_response(self, *_: Any, **request: Any) -> ModelResponse:
        """Return the call, then the text of its output."""
        last = request["input"][-1]
        output: Any = ResponseFunctionToolCall(**self._call, call_id="1", type="function_call")
        if last.get("type") == "function_call_output":
            text = ResponseOutputText(text=_text(last["output"]), annotations=[], type="output_text")
            output = ResponseOutputMessage(id="1", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Fail: the runs are not streamed."""
        raise NotImplementedError


def _text(output: Any) -> str:
    return output if isinstance(output, str) else "\n".join(part["text"] for part in output)


@asynccontextmanager
async def connect(target: dict[str, Any]) -> AsyncGenerator[Session]:
    """Yield a connected server of an agent."""
    set_tracing_disabled(True)
    kind = MCPServerStreamableHttp if "url" in target else MCPServerStdio
    async with kind(params=target, client_session_timeout_seconds=30) as server:

        async def list_tools() -> list[str]:
            return [tool.name for tool in await server.list_tools()]

        async def call_tool(name: str, arguments: dict[str, Any]) -> Result:
            strict = {"convert_schemas_to_strict": True}
            agent = Agent("caller", mcp_servers=[server], mcp_config=strict, model=OneCall(name, arguments))
            return Result((await Runner.run(agent, "Call the tool.")).final_output, is_error=None)

        yield Session(list_tools, call_tool)


if __name__ == "__main__":
    answer(connect)
