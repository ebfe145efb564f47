"""The type stub of the tools that a script names, with which Monty checks its arguments before anything is called.

Only unknown names of arguments are found: a server may convert a value, and a dictionary may be put together from
parts. `call` checks the rest, as `call_tool` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from shared.catalog import ToolDefinition

# A tool that the script names in a call; others are known only when it runs.
_NAMED = re.compile(r"""\bcall\(\s*(["'])([^"'\\\n]{1,300})\1""")

_HEAD = """
from typing import Any, Literal, TypedDict, overload
class ToolError(Exception): ...
def find(query: str) -> Any: ...
@overload
async def call(tool: Literal[""], arguments: int) -> Any: ...
"""
# Where one of these is, more arguments may be allowed than the properties.
_MORE = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "not", "if")


def named_tools(source: str) -> list[str]:
    """Return the names that calls of this source begin with, each once."""
    return list(dict.fromkeys(found[2] for found in _NAMED.finditer(source)))


def stub(tools: Mapping[str, ToolDefinition]) -> str:
    """Return the stub of these tools by the names that a script has for them; empty if nothing can be checked."""
    overloads = [_overload(number, name, tool) for number, (name, tool) in enumerate(tools.items())]
    return _HEAD + "".join(overloads) if any(overloads) else ""


def _overload(number: int, name: str, tool: ToolDefinition) -> str:
    schema = tool.as_object().get("inputSchema")
    declared = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    properties = declared.get("properties")
    is_closed = declared.get("additionalProperties") is False
    is_open = any(declared.get(key) not in (None, False) for key in _MORE)
    # a tool that names no argument may take any
    if not isinstance(properties, dict) or is_open or not (properties or is_closed):
        return ""
    fields = ", ".join(f"{key!a}: Any" for key in cast("dict[str, Any]", properties))
    return (
        f'_A{number} = TypedDict("_A{number}", {{{fields}}}, total=False)\n'
        f"@overload\nasync def call(tool: Literal[{name!a}], arguments: _A{number} = ...) -> Any: ...\n"
    )
