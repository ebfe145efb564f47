"""`toolscale describe` and `call`: the definition of a tool, and its call with arguments from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from rich.table import Table

from query.answers.detail import type_name
from shared.errors import ToolNotFound
from shared.quoting import printable, quoted_name
from toolscale.client.query import Ask

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock

Object = dict[str, Any]


def description(ask: Ask, name: str) -> Object:
    """Return a tool in the form of `describe_tool`, with its description and input schema.

    Raises:
        ToolNotFound: no searchable tool has this name, or several have it.
    """
    answer = ask("describe_tool", {"names": [name]})
    for problem in answer.get("not_found", ()):
        raise ToolNotFound(name, problem["reason"], tuple(problem.get("candidates", ())))
    return cast("Object", answer["tools"][0])


def parameter_table(tool: Object) -> Table:
    """Return the parameters of a tool as a table."""
    schema = _object(tool.get("inputSchema"))
    required = schema.get("required")
    table = Table("parameter", "type", "required", box=None, header_style="bold")
    table.add_column("description", ratio=1)
    for name, parameter in _object(schema.get("properties")).items():
        is_required = isinstance(required, list) and name in required
        about = str(_object(parameter).get("description", ""))
        table.add_row(printable(name), printable(type_name(parameter)), "yes" if is_required else "", printable(about))
    return table


def arguments_of(tool: Object, given: Iterable[tuple[str, str]]) -> Object:
    """Return the arguments of a call: text where the tool's input schema allows text, else the value as JSON.

    A value that is not JSON remains a text, which the service rejects if the schema does.
    """
    properties = _object(_object(tool.get("inputSchema")).get("properties"))
    return {name: text if _allows_text(properties.get(name)) else _parsed(text) for name, text in given}


def lines(result: CallToolResult) -> Iterator[str]:
    """Yield the lines of a result; content other than text is named."""
    for block in result.content:
        yield from _lines(block)
    if not result.content and result.structured_content is not None:
        yield from json.dumps(result.structured_content, indent=2).splitlines()


def _lines(block: ContentBlock) -> Sequence[str]:
    if block.type == "text":
        return block.text.splitlines()
    if block.type == "resource_link":
        return [f"[resource {quoted_name(block.uri)}]"]
    if block.type == "resource":
        return [f"[resource {quoted_name(block.resource.uri)}]"]
    return [f"[{block.type} {block.mime_type}, {len(block.data):,} characters of base64]"]


def _allows_text(schema: object) -> bool:
    parts = [_object(schema)]
    for key in ("anyOf", "oneOf"):
        if isinstance(alternatives := parts[0].get(key), list):
            parts += map(_object, cast("list[object]", alternatives))
    return any("string" in (kind if isinstance(kind := part.get("type"), list) else [kind]) for part in parts)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _object(value: object) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}
