"""The tools of the query service as objects: their definition with its schemas, permission, paging and `call`.

The schemas are small: every conversation of a client pays for them in tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, cast

from mcp.server.context import ServerRequestContext
from mcp.types import CallToolResult, Tool
from mcp_types import InputResponses
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from query.answers.budget import PagedRequest, ToolRequest
from query.answers.pages import OwnText
from query.caller import Caller, Permission
from query.turns import run_in_thread
from shared.text.tokens import json_text
from shared.validation import first_invalid_argument

CATALOGUE_UNREACHABLE = "The tool catalogue cannot be reached at the moment. Try again in a few seconds."
CURSOR_STORE_UNAVAILABLE = "Further pages and links cannot be kept or read at the moment. Try again in a few seconds."

TEMPORARY = "dev.toolscale/temporary"
"""In the `_meta` of an error result: the same call may succeed later."""

# Clients that defer tools until they are searched for must not defer these: they are the search.
ALWAYS_LOADED = {"anthropic/alwaysLoad": True}

Paging = Literal["kept", "own", "foreign"]

RequestT = TypeVar("RequestT", bound=ToolRequest)


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """One call of a tool: its caller, its arguments and the request that carried it.

    The server closes `exit_stack` after it has cut the result into pages. `response` is the JSON object that
    a CatalogueTool returned, or what the result of a prompt cannot hold. `request_state` and `input_responses` answer
    an earlier question to the client.
    """

    caller: Caller
    arguments: dict[str, Any]
    mcp_context: ServerRequestContext[Any]
    exit_stack: ExitStack
    response: dict[str, Any] = field(default_factory=dict[str, Any])
    request_state: str | None = None
    input_responses: InputResponses | None = None


class ToolHandler(ABC):
    """A tool that `tools/list` shows and `tools/call` reaches; a caller needs its `permission`.

    `paging` names the part that divides a long result:

    - "kept": the server. It stores the rest and reads `cursor` itself. It takes the arguments of PagedRequest.
    - "own": the tool. It obeys `max_tokens`.
    - "foreign": the server. The arguments belong to another server's tool, and `call_tool` reads the rest.

    `sort_key` orders "foreign" tools. Unlike a name, it stays the same while other tools come and go.
    """

    tool: Tool
    permission: Permission = "catalog:read"
    paging: Paging = "kept"
    sort_key: str = ""

    @cached_property
    def definition_text(self) -> str:
        """Return the JSON of the tool as `tools/list` shows it."""
        return definition_of(self).model_dump_json(by_alias=True, exclude_none=True)

    def is_for(self, caller: Caller) -> bool:
        """Return whether the caller sees the tool, and may use it."""
        return self.permission in caller.permissions

    @abstractmethod
    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the tool's result."""


class CatalogueTool(ToolHandler, Generic[RequestT]):
    """A tool that reads the catalogue: `answer` runs in a thread."""

    request_model: type[RequestT]

    async def call(self, context: ToolCallContext) -> CallToolResult:
        """Return the response, or an error result that names the first invalid argument."""
        try:
            request = self.request_model.model_validate(context.arguments)
        except ValidationError as error:
            return error_result(first_invalid_argument(error))
        response, text = await run_in_thread(context.caller.name, self.answer, request, context.caller)
        context.response.update(response)
        # clients that do not read structured content get the same as text
        return CallToolResult(content=[OwnText(text=text)], structured_content=response)

    def answer(self, request: RequestT, caller: Caller) -> tuple[dict[str, Any], str]:
        """Return the response to this caller, and its text."""
        response = self.respond(request, caller)
        return response, json_text(response)

    @abstractmethod
    def respond(self, request: RequestT, caller: Caller) -> dict[str, Any]:
        """Return the response to this caller, a JSON object."""


def definition_of(handler: ToolHandler | type[ToolHandler]) -> Tool:
    """Return a tool as `tools/list` shows it; a "kept" tool also takes `cursor`.

    A "kept" tool declares no output schema, since a page of a long result is a part of its text.
    """
    if handler.paging != "kept":
        return handler.tool
    properties = handler.tool.input_schema.get("properties", {})
    schema = {**handler.tool.input_schema, "properties": {**properties, **_PAGING}}
    return handler.tool.model_copy(update={"input_schema": schema, "output_schema": None})


def temporary_error(reason: str) -> CallToolResult:
    """Return an error result that a command may repeat soon; its exit code then differs."""
    return error_result(reason).model_copy(update={"meta": {TEMPORARY: True}})


def error_result(reason: str) -> CallToolResult:
    """Return an error result, for the model to read."""
    return CallToolResult(content=[OwnText(text=reason)], is_error=True)


def input_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a tool's arguments."""
    return _schema(model, "validation")


def output_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a tool's response, which omits fields that are None."""
    return _schema(model, "serialization")


def _schema(model: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    schema = model.model_json_schema(mode=mode, schema_generator=_SmallSchema)
    # pydantic adds the class docstring as a description, which is for readers of the code
    for definition in (schema, *cast("dict[str, dict[str, Any]]", schema.get("$defs", {})).values()):
        definition.pop("title", None)
        definition.pop("description", None)
        # a client that checks arguments would refuse those that are accepted without being listed
        definition.pop("additionalProperties", None)
    return schema


_LIMITS = {"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"}


class _SmallSchema(GenerateJsonSchema):
    """Omits what an agent does not need: titles, which repeat the names, null, "no" as a default, limits of arguments.

    Validation still enforces these limits, which guard against abuse, and names them.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  # the overridden signature
        return False

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        return self._unlimited(super().str_schema(schema))

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return self._unlimited(super().int_schema(schema))

    def list_schema(self, schema: core_schema.ListSchema) -> JsonSchemaValue:
        return self._unlimited(super().list_schema(schema))

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        with_default = super().default_schema(schema)
        return {key: value for key, value in with_default.items() if key != "default" or value}

    def _unlimited(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        left_out = _LIMITS if self.mode == "validation" else {"maxLength"}
        return {key: value for key, value in schema.items() if key not in left_out}


# of each list of tools, so made once
_PAGING: dict[str, Any] = input_schema(PagedRequest)["properties"]
