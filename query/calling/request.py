"""The request of `call_tool`, in any of the forms that agents use."""

from __future__ import annotations

import json
from typing import Any, cast

from pydantic import Field, model_validator

from query.answers.budget import ToolRequest, without_empty
from query.search.request import ToolName

_TOOL_NAMES = ("tool_name", "name")
_PARAMETERS = ("parameters", "arguments", "args")
_ALL_NAMES = {*_TOOL_NAMES, *_PARAMETERS, "server_name"}
# More nested calls than any agent was observed to send.
_MAX_WRAPPERS = 3
_CALL_TOOL = "call_tool"


class CallRequest(ToolRequest):
    """A tool and its parameters.

    Also accepted: `name` for `tool_name`, `arguments` or `args` for `parameters`, parameters as JSON text, and the
    whole request nested in `parameters`.
    """

    tool_name: ToolName
    """`server:tool`, or the tool's name."""
    server_name: ToolName | None = None
    """Its server, if not in tool_name."""
    parameters: dict[str, Any] = Field(default_factory=dict[str, Any])
    """As the tool's inputSchema says."""

    @model_validator(mode="before")
    @classmethod
    def _straighten(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        return _unwrapped(_normalized(cast("dict[str, Any]", raw)))

    @property
    def name(self) -> str:
        """Return the name to look up, qualified if the server is given."""
        if self.server_name is None or self.tool_name.startswith(f"{self.server_name}:"):
            return self.tool_name
        return f"{self.server_name}:{self.tool_name}"


def _unwrapped(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the innermost request; a wrapper names no tool, or `call_tool`."""
    for _ in range(_MAX_WRAPPERS):
        inner = raw.get("parameters")
        is_ours = raw.get("tool_name") == _CALL_TOOL and raw.get("server_name") is None
        if not (is_ours or raw.get("tool_name") is None) or not isinstance(inner, dict):
            break
        wrapped = _normalized(cast("dict[str, Any]", inner))
        if wrapped.keys().isdisjoint(("tool_name", "parameters")):
            break
        rest = {key: value for key, value in raw.items() if key not in ("tool_name", "parameters")}
        raw = rest | wrapped
    return raw


def _normalized(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the request with the names of the fields, without empty values.

    Raises:
        ValueError: a field is given twice, under two names.
    """
    renamed = _renamed(_renamed(without_empty(raw, _ALL_NAMES), _TOOL_NAMES), _PARAMETERS)
    if isinstance(renamed.get("parameters"), str):
        renamed["parameters"] = _from_text(renamed["parameters"])
    return renamed


def _renamed(raw: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    used = [name for name in names if name in raw]
    if not used:
        return raw
    if len(used) > 1:
        raise ValueError(f"{used[1]}: says the same as {used[0]}, use one of them")
    rest = {key: value for key, value in raw.items() if key != used[0]}
    return rest | {names[0]: raw[used[0]]}


def _from_text(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text  # the validation of the field rejects it
