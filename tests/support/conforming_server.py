"""An MCP server with what the public conformance suite looks for, which gives the names and the texts.

Run it with the descriptor of a listening socket.
"""

from __future__ import annotations

import base64
import io
import socket
import sys
import wave
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from mcp import types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ServerEvent, ToolsListChanged
from mcp.types import TextContent
from PIL import Image

Context: TypeAlias = ServerRequestContext[Any, Any]
Arguments: TypeAlias = dict[str, Any]
Answers: TypeAlias = dict[str, Any]

RETRY_MS = 100


def text(words: str) -> TextContent:
    return TextContent(type="text", text=words)


def object_schema(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


STRING = {"type": "string"}


def png() -> str:
    """Return a picture of one red pixel, in base64."""
    written = io.BytesIO()
    Image.new("RGB", (1, 1), "red").save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()


def wav() -> str:
    """Return a sound of one silent frame, in base64."""
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(b"\x80")
    return base64.b64encode(written.getvalue()).decode()


IMAGE = types.ImageContent(type="image", data=png(), mime_type="image/png")
AUDIO = types.AudioContent(type="audio", data=wav(), mime_type="audio/wav")


def embedded(uri: str, words: str, mime_type: str = "text/plain") -> types.EmbeddedResource:
    contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    return types.EmbeddedResource(type="resource", resource=contents)


# ---- tools that only answer

CONTENT: dict[str, list[types.ContentBlock]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [AUDIO],
    "test_embedded_resource": [embedded("test://embedded-resource", "This is an embedded resource content.")],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
    ],
    "json_schema_2020_12_tool": [text("called")],
}

Result: TypeAlias = str | list[types.ContentBlock] | types.CallToolResult | types.InputRequiredResult


async def answers_with(content: list[types.ContentBlock], _: Context, __: types.CallToolRequestParams) -> Result:
    return content


# ---- tools that notify or fail


async def error_handling(_: Context, __: types.CallToolRequestParams) -> Result:
    failure = "This tool intentionally returns an error for testing"
    return types.CallToolResult(content=[text(failure)], is_error=True)


async def tool_with_progress(context: Context, _: types.CallToolRequestParams) -> Result:
    for percent in (0, 50, 100):
        await context.session.report_progress(percent, 100, f"{percent} of 100")
    return str((context.meta or {}).get("progress_token", 0))


async def log(context: Context, message: str) -> None:
    await context.session.send_log_message(  # pyright: ignore[reportDeprecated]  # older clients expect logs
        "info", message, related_request_id=context.request_id
    )


async def tool_with_logging(context: Context, _: types.CallToolRequestParams) -> Result:
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await log(context, message)
    return "logged"


async def reconnection(context: Context, _: types.CallToolRequestParams) -> Result:
    """End the stream of the response; the client has to continue it."""
    if context.close_sse_stream:
        await context.close_sse_stream()
    return "Reconnection test completed"


async def x_mcp_header(_: Context, params: types.CallToolRequestParams) -> Result:
    return f"region: {(params.arguments or {}).get('region')}"


async def missing_capability(context: Context, _: types.CallToolRequestParams) -> Result:
    if not can(context, "sampling"):
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="this tool needs the capability sampling of the client",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return "the client can sample"


async def publishes(event: ServerEvent, _: Context, __: types.CallToolRequestParams) -> Result:
    await BUS.publish(event)
    return "published"


# ---- tools that ask the client in mid-call, on 2025-11-25


async def sampling(context: Context, params: types.CallToolRequestParams) -> Result:
    sampled = await context.session.create_message(  # pyright: ignore[reportDeprecated]  # older clients have no other
        [types.SamplingMessage(role="user", content=text((params.arguments or {})["prompt"]))],
        max_tokens=100,
        related_request_id=context.request_id,
    )
    assert isinstance(sampled.content, TextContent)
    return f"LLM response: {sampled.content.text}"


async def elicits(schema: dict[str, Any], context: Context, params: types.CallToolRequestParams) -> Result:
    message = (params.arguments or {}).get("message", "Please answer")
    answer = await context.session.elicit_form(message, schema, context.request_id)
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


DEFAULTS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
TITLED = [{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}]
ENUMS: dict[str, dict[str, Any]] = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}

# ---- tools that ask the client with a result, on 2026-07-28


def question(message: str, **properties: dict[str, Any]) -> types.ElicitRequest:
    schema = object_schema(**properties)
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample_request(prompt: str) -> types.CreateMessageRequest:
    messages = [types.SamplingMessage(role="user", content=text(prompt))]
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=messages, max_tokens=100))


NAME = question("What is your name?", name=STRING)
CONFIRM = question("Please confirm", ok={"type": "boolean"})
ROOTS = types.ListRootsRequest()

# The inputs that a tool needs, round after round; a stated tool also hands its round to the client, sealed.
ROUNDS: dict[str, list[dict[str, types.InputRequest]]] = {
    "test_input_required_result_elicitation": [{"user_name": NAME}],
    "test_input_required_result_sampling": [{"capital_question": sample_request("What is the capital of France?")}],
    "test_input_required_result_list_roots": [{"client_roots": ROOTS}],
    "test_input_required_result_request_state": [{"confirm": CONFIRM}],
    "test_input_required_result_tampered_state": [{"confirm": CONFIRM}],
    "test_input_required_result_multiple_inputs": [
        {"user_name": NAME, "greeting": sample_request("Generate a greeting"), "client_roots": ROOTS}
    ],
    "test_input_required_result_multi_round": [
        {"step1": question("Step 1: What is your name?", name=STRING)},
        {"step2": question("Step 2: What is your favorite color?", color=STRING)},
    ],
}
STATELESS = {name for name in ROUNDS if name.rpartition("_")[2] in ("elicitation", "sampling", "roots")}


async def asks(context: Context, params: types.CallToolRequestParams) -> Result:
    """Ask for the inputs of the next round, again where an answer is missing, then return the last answers."""
    rounds, current = ROUNDS[params.name], int(params.request_state or 0)
    answers = params.input_responses or {}
    if current in range(len(rounds)) and rounds[current].keys() <= answers.keys():
        current += 1
    if current == len(rounds):
        return f"answered: {', '.join(sorted(answers))}"
    state = None if params.name in STATELESS else str(current)
    return types.InputRequiredResult(input_requests=rounds[current], request_state=state)


async def input_required_result_capabilities(context: Context, params: types.CallToolRequestParams) -> Result:
    if params.input_responses:
        return "answered"
    possible: dict[str, types.InputRequest] = {"sampling": sample_request("Say hello"), "elicitation": NAME}
    requests = {name: request for name, request in possible.items() if can(context, name)}
    return types.InputRequiredResult(input_requests=requests, request_state="0")


async def streaming_elicitation(context: Context, params: types.CallToolRequestParams) -> Result:
    if params.input_responses:
        return "answered"
    await context.session.report_progress(1, 2, "a question follows")
    return types.InputRequiredResult(input_requests={"user_name": NAME})


def can(context: Context, capability: str) -> bool:
    """Return whether the client has declared this capability."""
    return getattr(context.session.client_capabilities, capability, None) is not None


BUS = InMemorySubscriptionBus()
Tool: TypeAlias = Callable[[Context, types.CallToolRequestParams], Awaitable[Result]]

TOOLS: dict[str, Tool] = {
    **{name: partial(answers_with, content) for name, content in CONTENT.items()},
    **{
        f"test_{function.__name__}": function
        for function in (
            error_handling,
            tool_with_progress,
            tool_with_logging,
            reconnection,
            x_mcp_header,
            missing_capability,
            sampling,
            input_required_result_capabilities,
            streaming_elicitation,
        )
    },
    "test_logging_tool": tool_with_logging,
    "test_elicitation": partial(elicits, object_schema(response=STRING)),
    "test_elicitation_sep1034_defaults": partial(elicits, object_schema(**DEFAULTS)),
    "test_elicitation_sep1330_enums": partial(elicits, object_schema(**ENUMS)),
    **dict.fromkeys(ROUNDS, asks),
    "test_trigger_tool_change": partial(publishes, ToolsListChanged()),
    "test_trigger_prompt_change": partial(publishes, PromptsListChanged()),
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "test_sampling": object_schema(prompt=STRING),
    "test_elicitation": object_schema(message=STRING),
    "test_x_mcp_header": object_schema(region={"type": "string", "x-mcp-header": "Region"}),
    # each of its keywords must arrive
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", **object_schema(street=STRING, city=STRING)}},
        "properties": {
            "name": STRING,
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": STRING,
            "email": STRING,
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
}
LIST = types.ListToolsResult(
    tools=[
        types.Tool(name=name, description=f"Tests {name}.", input_schema=SCHEMAS.get(name, object_schema()))
        for name in TOOLS
    ]
)


async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return LIST


async def call_tool(
    context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    if params.name not in TOOLS:
        raise MCPError(code=types.INVALID_PARAMS, message=f"there is no tool {params.name}")
    result = await TOOLS[params.name](context, params)
    if isinstance(result, str):
        return types.CallToolResult(content=[text(result)])
    return types.CallToolResult(content=result) if isinstance(result, list) else result


# ---- prompts

PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


async def list_prompts(_: Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description=f"Tests {name}.",
                arguments=[types.PromptArgument(name=argument, required=True) for argument in arguments],
            )
            for name, arguments in PROMPTS.items()
        ]
    )


async def get_prompt(
    _: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    given = params.arguments or {}
    missing = set(PROMPTS.get(params.name, [])) - given.keys()
    if params.name not in PROMPTS or missing:
        raise MCPError(code=types.INVALID_PARAMS, message=f"there is no prompt {params.name}, or it lacks {missing}")
    content: dict[str, list[types.ContentBlock]] = {
        "test_prompt_with_arguments": [text(f"Prompt with arguments: {given}")],
        "test_prompt_with_image": [IMAGE, text("Please analyze the image above.")],
    }
    if params.name == "test_prompt_with_embedded_resource":
        content[params.name] = [embedded(given["resourceUri"], "Embedded resource content for testing.")]
    if params.name == "test_input_required_result_prompt" and "user_context" not in (params.input_responses or {}):
        asked = question("What context should the prompt use?", context=STRING)
        return types.InputRequiredResult(input_requests={"user_context": asked})
    blocks = content.get(params.name, [text("This is a simple prompt for testing.")])
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=block) for block in blocks])


async def complete(_: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [value for value in ("paris", "park", "party") if value.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


# ---- resources

TEMPLATE = "test://template/{id}/data"
RESOURCES: dict[str, types.TextResourceContents | types.BlobResourceContents] = {
    "test://static-text": types.TextResourceContents(
        uri="test://static-text", mime_type="text/plain", text="This is the content of the static text resource."
    ),
    "test://static-binary": types.BlobResourceContents(
        uri="test://static-binary", mime_type="image/png", blob=IMAGE.data
    ),
    "test://watched-resource": types.TextResourceContents(
        uri="test://watched-resource", mime_type="text/plain", text="watched"
    ),
}


async def list_resources(_: Context, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=uri, name=uri.removeprefix("test://"), mime_type=contents.mime_type)
            for uri, contents in RESOURCES.items()
        ]
    )


async def list_templates(_: Context, __: types.PaginatedRequestParams | None) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(uri_template=TEMPLATE, name="template", mime_type="application/json")
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(_: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    before, after = TEMPLATE.split("{id}")
    if params.uri in RESOURCES:
        return types.ReadResourceResult(contents=[RESOURCES[params.uri]])
    if params.uri.startswith(before) and params.uri.endswith(after):
        name = params.uri.removeprefix(before).removesuffix(after)
        contents = types.TextResourceContents(
            uri=params.uri, mime_type="application/json", text=f'{{"id":"{name}","templateTest":true}}'
        )
        return types.ReadResourceResult(contents=[contents])
    raise MCPError(code=types.INVALID_PARAMS, message="there is no such resource", data={"uri": params.uri})


async def does_nothing(_: Context, __: Any) -> types.EmptyResult:
    return types.EmptyResult()


class Events(EventStore):
    """All events of all streams, so that a client can continue any of them."""

    def __init__(self) -> None:
        self._events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id)
        if not 0 < last <= len(self._events):
            return None
        stream = self._events[last - 1][0]
        for number, (of_stream, message) in enumerate(self._events[last:], last + 1):
            if of_stream == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def conforming_server() -> Server[Any]:
    """Return the server, with all that both revisions have."""
    server: Server[Any] = Server(
        "conforming",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=does_nothing,
        on_unsubscribe_resource=does_nothing,
        on_subscriptions_listen=ListenHandler(BUS),
    )
    # the constructor's argument for it is deprecated, and warns
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, does_nothing)
    # a client gets states sealed, so a changed one is refused
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="conforming"))
    return server


def main(descriptor: int) -> None:
    """Serve on this listening socket until the process ends."""
    import uvicorn

    app = conforming_server().streamable_http_app(event_store=Events(), retry_interval=RETRY_MS)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[socket.socket(fileno=descriptor)])


PROGRAM = Path(__file__).resolve()

if __name__ == "__main__":
    main(int(sys.argv[1]))
