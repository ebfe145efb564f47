"""The prompts of a toolset's servers: `prompts/list` and `prompts/get`.

A prompt has the name that a tool of its server would have in `tools/list`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio.to_thread
from mcp.types import (
    CallToolResult,
    GetPromptRequest,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsResult,
    PromptMessage,
    ResourceLink,
    Role,
    Tool,
)
from pydantic import TypeAdapter

from query.answers.links import Links
from query.answers.pages import OwnText, Reader
from query.calling.call import forwarded
from query.tool import ToolCallContext
from query.tools.revisions import for_protocol, foreign_meta
from query.tools.server_request import requester_of
from query.toolset_servers import MAX_TTL_MS, Gathered, RequestHandler, all_pages, page_of
from query.toolsets.offers import SEPARATOR, direct_name
from shared.errors import ResourceNotFound
from shared.quoting import quoted_name
from shared.text.invisible import mark_text

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import Prompt

    from query.caller import Caller
    from query.calling.call import ResolvedTool
    from query.calling.connection import Send
    from query.questions import ClientInput
    from query.tools.audit import CallAudit
    from query.toolset_servers import ToolsetServers
    from shared.upstream.auth import Requester

LIST_PROMPTS, GET_PROMPT = "prompts/list", "prompts/get"

PromptAnswer = GetPromptResult | InputRequiredResult
_PROMPT_ANSWER: TypeAdapter[PromptAnswer] = TypeAdapter(PromptAnswer)


class Prompts:
    """The prompts that callers see."""

    def __init__(self, servers: ToolsetServers) -> None:
        self._servers = servers
        self._policy = servers.catalogue.response_policy

    async def list(self, caller: Caller, requester: Requester, cursor: str | None) -> ListPromptsResult:
        """Return a page of the prompts of the caller's servers.

        Raises:
            CallsExhausted, IndexUnavailable: from `ToolsetServers.gather`.
            CursorInvalid, CursorsUnavailable: from `page_of`.
        """
        gathered = await self._servers.gather(caller, requester, _list_prompts)
        return await anyio.to_thread.run_sync(self._page, gathered, caller, cursor)

    async def named(self, name: str, caller: Caller, requester: Requester) -> tuple[ResolvedTool, str]:
        """Return the server of a prompt, and the prompt's name there.

        Raises:
            ResourceNotFound: none of the caller's servers has a prompt of this name.
            CallsExhausted, IndexUnavailable: from `ToolsetServers.gather`.
        """
        server_id, separator, prompt = name.partition(SEPARATOR)
        if separator:
            for server in (await self._servers.of(caller)).values():
                if any(record.server_id == server_id for record in server.replicas):
                    return server, prompt
        else:  # a name with a hash does not contain those of the server and the prompt
            servers = await self._servers.of(caller)
            for each in (await self._servers.gather(caller, requester, _list_prompts)).lists:
                for listed in each.listed.prompts:
                    if direct_name(each.server_id, listed.name) == name:
                        return servers[each.server_id], listed.name
        raise ResourceNotFound(f"unknown prompt {quoted_name(name)}: expected a name from prompts/list")

    def _page(self, gathered: Gathered[ListPromptsResult], caller: Caller, cursor: str | None) -> ListPromptsResult:
        prompts: dict[str, Prompt] = {}
        for each in gathered.lists:
            for prompt in each.listed.prompts:
                shown = {"name": direct_name(each.server_id, prompt.name), "meta": foreign_meta(prompt.meta) or None}
                prompts[f"{each.server_id}:{prompt.name}"] = prompt.model_copy(update=shown)
        page, fields = page_of(prompts, gathered, Reader(caller.name, LIST_PROMPTS), cursor, self._policy)
        return ListPromptsResult(prompts=page, **fields)


async def _list_prompts(client: Client, _: ProgressFnT) -> ListPromptsResult:
    empty = ListPromptsResult(prompts=[], ttl_ms=MAX_TTL_MS)
    return await all_pages(client.list_prompts, client.server_capabilities.prompts, empty)


class GetPrompt(RequestHandler):
    """Gets a prompt; the content of its result is that of the messages."""

    tool = Tool(name=GET_PROMPT, input_schema={"type": "object"})

    def __init__(self, servers: ToolsetServers, prompts: Prompts) -> None:
        super().__init__(servers)
        self._prompts = prompts

    async def result(self, context: ToolCallContext, audit: CallAudit) -> CallToolResult:
        """Return the content of the prompt's messages; the context's response has their roles and the description."""
        caller, asked = context.caller, context.arguments["name"]
        server, name = await self._prompts.named(asked, caller, requester_of(caller, context.mcp_context))
        arguments, meta = context.arguments["arguments"], forwarded(context.mcp_context.meta)

        def request(given: ClientInput) -> Send[PromptAnswer]:
            params = GetPromptRequestParams(
                name=name,
                arguments=arguments,
                input_responses=given.responses,
                request_state=given.state,
                _meta=meta,
            )

            async def send(client: Client, on_progress: ProgressFnT) -> PromptAnswer:
                asking = GetPromptRequest(params=params)
                return await client.session.send_request(asking, _PROMPT_ANSWER, progress_callback=on_progress)

            return send

        about = name, json.dumps(arguments, sort_keys=True)
        got, server_id = await self.answered(request, server, context, audit, *about)
        description = None if got.description is None else mark_text(got.description)
        context.response.update(description=description, roles=[message.role for message in got.messages])
        content = CallToolResult(content=[message.content for message in got.messages], _meta=got.meta)
        if any(isinstance(block, ResourceLink) for block in content.content):
            links = Links(context.caller.name, self._catalogue.response_policy.kept)
            tool = f"{server_id}:{server.tool.definition.name}"
            content = await anyio.to_thread.run_sync(links.in_result, content, tool)
        return for_protocol(content, context.mcp_context.protocol_version, server_id)


def prompt_of(page: CallToolResult, call: ToolCallContext) -> GetPromptResult:
    """Return the prompt of a result of `GetPrompt`; the parts of one that was cut are messages of the user."""
    roles: list[Role] = call.response["roles"]
    if any(isinstance(block, OwnText) for block in page.content):
        roles = ["user"] * len(page.content)
    messages = [PromptMessage(role=role, content=block) for role, block in zip(roles, page.content, strict=True)]
    return GetPromptResult(description=call.response["description"], messages=messages, _meta=page.meta)
