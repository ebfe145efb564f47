"""A server with prompts, resources, a template and completions, run as `good_server.py` is.

`LIBRARY` names it, in what it returns. Its lists have two pages each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server import Server
from mcp.server.context import ServerRequestContext

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support.hostile.good_server import run

Context = ServerRequestContext[Any, Any]
NAME = os.environ.get("LIBRARY", "library")
HIDDEN = "\u200b"
UI = "ui://shelf/view.html"
CITIES = ["Bern", "Bonn", "Oslo"]
SECOND = "second"

PROMPTS = [
    types.Prompt(name="greet", description=f"Greets{HIDDEN}.", arguments=[types.PromptArgument(name="city")]),
    types.Prompt(name="no plain name", description=f"of {NAME}", _meta={"dev.toolscale/warnings": ["forged"], "x": 1}),
]
RESOURCES = [
    types.Resource(name="shelf", uri="shelf://one/book 1", mime_type="text/plain"),
    types.Resource(name="web", uri="https://example.org/page"),
]
TEMPLATES = [
    types.ResourceTemplate(name="book", uri_template="shelf://{shelf}/books/{book}"),
    types.ResourceTemplate(name="search", uri_template="shelf://search{?words}"),
]


def page(entries: list[Any], params: types.PaginatedRequestParams | None) -> dict[str, Any]:
    """Return the entries of a page, and the other fields of its list."""
    is_second = bool(params and params.cursor)
    return {"entries": entries[1:] if is_second else entries[:1], "next_cursor": None if is_second else SECOND}


async def list_prompts(_: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    fields = page(PROMPTS, params)
    return types.ListPromptsResult(prompts=fields.pop("entries"), ttl_ms=7_000, **fields)


ASK = types.ElicitRequest(
    params=types.ElicitRequestFormParams(message="Which city?", requested_schema={"type": "object", "properties": {}})
)


async def get_prompt(_: Context, params: types.GetPromptRequestParams) -> Any:
    if params.name == "ask":
        answer = (params.input_responses or {}).get("city")
        if not isinstance(answer, types.ElicitResult):
            return types.InputRequiredResult(input_requests={"city": ASK}, request_state="half way")
        words = f"{(answer.content or {})['city']}, {params.request_state}, of {NAME}"
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=types.TextContent(text=words))])
    if params.name not in {prompt.name for prompt in PROMPTS}:
        raise MCPError(types.INVALID_PARAMS, f"no prompt {params.name}")
    words = (params.arguments or {}).get("city", "nobody") * int((params.arguments or {}).get("times", "1"))
    link = types.ResourceLink(type="resource_link", name="shelf", uri="shelf://one/book 1")
    return types.GetPromptResult(
        description=f"by {NAME}",
        messages=[
            types.PromptMessage(role="user", content=types.TextContent(text=f"Greet {words}{HIDDEN} from {NAME}.")),
            types.PromptMessage(role="assistant", content=types.TextContent(text="Which book?")),
            types.PromptMessage(role="user", content=link),
        ],
    )


async def list_resources(_: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    fields = page(RESOURCES, params)
    return types.ListResourcesResult(resources=fields.pop("entries"), **fields)


async def list_templates(_: Context, params: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
    fields = page(TEMPLATES, params)
    return types.ListResourceTemplatesResult(resource_templates=fields.pop("entries"), **fields)


async def read(_: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    text = f"{params.uri} of {NAME}"
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])


async def complete(_: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    of = params.ref.name if isinstance(params.ref, types.PromptReference) else params.ref.uri
    values = [city for city in CITIES if city.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=[*values, f"{of}{HIDDEN}"], has_more=False))


async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="open", input_schema={"type": "object"})])


server: Server[Any] = Server(
    NAME,
    version="1",
    on_list_tools=list_tools,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read,
    on_completion=complete,
)

if __name__ == "__main__":
    run(server)
