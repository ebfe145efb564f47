"""Validation of single tools: a malformed one is rejected with its reason, and the others stay."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import Tool
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from shared.catalog import DEFINITIONS_REMEMBERED, SMALL_DEFINITION, RejectedTool, ToolDefinition
from shared.errors import ListingTooLarge
from shared.quoting import printable, quoted
from shared.text.invisible import MARK, mark_text, marked
from shared.upstream.messages import MAX_TOOL_NODES, holds_more_values
from shared.validation import first_problem

MAX_NAME_CHARACTERS = 128
MAX_DEPTH = 100
MAX_NAMED = 100
_REASON_CHARACTERS = 200
# Without these and beyond ASCII, a JSON text holds nothing invisible: it escapes the control characters.
_CONTROLS = re.compile(r"\\(?:u00|[bf])|\x7f")
_ENVELOPE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one listing.

    `timeout_s` covers connecting and all pages. A child process must send its first message within the longer of
    `timeout_s` and `start_timeout_s`; then `timeout_s` begins. `max_tools` and `max_total_bytes` are over all pages;
    `max_message_bytes` is the size of one response, event or line; a tool over `max_tool_bytes` is rejected. The
    number of JSON values has fixed limits in `shared.upstream.messages`.
    """

    timeout_s: float = 30.0
    start_timeout_s: float = 0.0
    # The largest servers seen offer hundreds of tools in pages of tens, a tool of some KiB; a hostile one has no end.
    max_tools: int = 10_000
    max_pages: int = 1_000
    max_message_bytes: int = 4 << 20
    # tiktoken needs quadratic time for a run of blanks: 60 ms for this size, 1.5 s for 2 MiB
    max_tool_bytes: int = 256 << 10
    max_total_bytes: int = 64 << 20


class ListingBuilder:
    """The tools of a walk so far: `tools` by name, in the order of the pages, and the `rejected` ones.

    `size_bytes` is the size of their definitions. `marked` names the tools whose texts had invisible characters.
    """

    def __init__(self, server_id: str, protocol_version: str, limits: Limits) -> None:
        self.tools: dict[str, ToolDefinition] = {}
        self.rejected: list[RejectedTool] = []
        self.marked: list[str] = []
        self._server_id = server_id
        self._version = protocol_version
        self._limits = limits
        self.size_bytes = 0

    def add(self, page: Iterable[object]) -> None:
        """Validate the tools of one page.

        Raises:
            ListingTooLarge: the tools exceed the limit of count or bytes.
        """
        for raw in page:
            if len(self.tools) + len(self.rejected) >= self._limits.max_tools:
                raise ListingTooLarge(self._server_id, f"more than {self._limits.max_tools} tools")
            try:
                definition, is_marked = read_definition(raw, self._version, self._limits.max_tool_bytes)
                if definition.name in self.tools:
                    raise ValueError("a second tool of this name")  # rejected like any malformed tool
            except ValueError as error:
                self.rejected.append(RejectedTool(name=_name_shown(raw), reason=_reason(error)))
                continue
            self.size_bytes += len(definition.wire)
            if self.size_bytes > self._limits.max_total_bytes:
                raise ListingTooLarge(self._server_id, f"more than {self._limits.max_total_bytes} bytes of tools")
            self.tools[definition.name] = definition
            self.marked += [definition.name] if is_marked else []

    def rejected_summary(self) -> tuple[RejectedTool, ...]:
        """Return the first rejected tools, and one more entry with the number of the others."""
        named, others = self.rejected[:MAX_NAMED], len(self.rejected) - MAX_NAMED
        summary = [RejectedTool(name="…", reason=f"{others} more tools were left out")] if others > 0 else []
        return (*named, *summary)


def read_definition(raw: object, protocol_version: str, max_bytes: int) -> tuple[ToolDefinition, bool]:
    """Return the definition as the server sent it, without spaces between its values, and with its keys in order.

    The second value is whether its texts had invisible characters; the definition has marks in place of them.

    Raises:
        ValueError: a client would reject it, its name or a key has invisible characters, or it exceeds `max_bytes`.
    """
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")  # a TypeError would be a second error type for invalid data
    wire = _as_wire(cast("dict[str, object]", raw))
    _refuse_large(wire, max_bytes)  # validating takes many times the memory
    # short, and with too few brackets to be nested too deep
    if len(wire) <= SMALL_DEFINITION and wire.count(b"{") + wire.count(b"[") <= MAX_DEPTH:
        return _remembered(wire, protocol_version, max_bytes)
    return _read(cast("dict[str, object]", raw), wire, protocol_version, max_bytes)


@lru_cache(DEFINITIONS_REMEMBERED)
def _remembered(wire: bytes, protocol_version: str, max_bytes: int) -> tuple[ToolDefinition, bool]:
    """Return the definition, which most listings repeat: an unchanged tool, or that of another replica."""
    return _read(json.loads(wire), wire, protocol_version, max_bytes)


def _read(raw: dict[str, object], wire: bytes, protocol_version: str, max_bytes: int) -> tuple[ToolDefinition, bool]:
    _refuse_deep(raw)
    validate_server_result("tools/list", protocol_version, {**_ENVELOPE, "tools": [raw]})
    tool = Tool.model_validate(raw, by_name=False)
    # newer clients must reject such a tool
    if protocol_version in MODERN_PROTOCOL_VERSIONS and (fault := find_invalid_x_mcp_header(tool.input_schema)):
        raise ValueError(f"invalid x-mcp-header: {quoted(fault)}")
    is_printable = tool.name.isprintable() and MARK not in mark_text(tool.name)
    if not tool.name or len(tool.name) > MAX_NAME_CHARACTERS or not is_printable:
        raise ValueError(f"its name must have 1 to {MAX_NAME_CHARACTERS} printable characters")
    text = wire.decode()
    visible = _visible(text, raw, max_bytes)
    return ToolDefinition.from_wire(visible), visible != text


def _visible(wire: str, raw: dict[str, object], max_bytes: int) -> str:
    """Return the definition with its texts marked; a key stays as the server spells it, or its tool is rejected."""
    if wire.isascii() and not _CONTROLS.search(wire):
        return wire
    if any(mark_text(key) != key for key in _keys(raw)):
        raise ValueError("a key of its definition has an invisible character")
    shown = marked(raw)
    if shown is raw:
        return wire
    visible = _as_wire(shown)
    _refuse_large(visible, max_bytes)
    return visible.decode()


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from cast("dict[str, object]", value)
        value = list(cast("dict[str, object]", value).values())
    if isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _keys(item)


def _as_wire(raw: object) -> bytes:
    try:
        return to_json(raw, inf_nan_mode="null")
    except PydanticSerializationError as error:
        raise ValueError(
            "its definition has half a character (a lone surrogate), or a number that is too long"
        ) from error


def _refuse_large(definition: bytes, max_bytes: int) -> None:
    if len(definition) > max_bytes:
        raise ValueError(f"its definition has {len(definition)} bytes, more than {max_bytes}")
    if holds_more_values(definition, MAX_TOOL_NODES):
        raise ValueError(f"its definition holds more than {MAX_TOOL_NODES} values")


def _refuse_deep(value: object, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"its definition is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        value = list(cast("dict[str, object]", value).values())
    if isinstance(value, list):
        for item in cast("list[object]", value):
            _refuse_deep(item, depth + 1)


def _name_shown(raw: object) -> str:
    name: object = cast("dict[str, object]", raw).get("name") if isinstance(raw, dict) else None
    if not isinstance(name, str):
        return "?"
    return printable(mark_text(name[:MAX_NAME_CHARACTERS]))


def _reason(error: ValueError) -> str:
    reason = first_problem(error) if isinstance(error, ValidationError) else str(error)
    return printable(mark_text(reason.removeprefix("tools.0.")[:_REASON_CHARACTERS]))
