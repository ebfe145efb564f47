"""The JSON-RPC messages that a scripted server needs. Standard library only: child processes start fast with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
Pages = Callable[[str | None], Message]


def tool(name: str, description: str = "Does something useful.") -> Message:
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": {"q": {}}}}


def result(request: Message, content: Message) -> Message:
    return {"jsonrpc": "2.0", "id": request["id"], "result": content}


def failure(request: Message, code: int, message: str, **data: Any) -> Message:
    return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message, **data}}


def initialized(request: Message, version: str = "2025-11-25", name: str = "scripted") -> Message:
    about = {"name": name, "version": "1"}
    return result(request, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about})


def cursor_of(request: Message) -> str | None:
    params: Message = request.get("params") or {}
    return params.get("cursor")


def answer(request: Message, pages: Pages) -> Message | None:
    """Return the response of a plain server of the handshake era; None for a notification."""
    match request.get("method"):
        case "initialize":
            return initialized(request)
        case "tools/list":
            return result(request, pages(cursor_of(request)))
        case method if "id" in request:
            return failure(request, -32601, f"unknown method {method}")
        case _:
            return None


def one_page(*tools: Any) -> Pages:
    return lambda _cursor: {"tools": list(tools)}


def endless(cursor: str | None) -> Message:
    """One tool a page, and always another cursor."""
    number = int(cursor or 0)
    return {"tools": [tool(f"tool_{number}")], "nextCursor": str(number + 1)}


def circular(cursor: str | None) -> Message:
    """Two pages that point to each other."""
    return {"tools": [tool(f"tool_{cursor}")], "nextCursor": "b" if cursor == "a" else "a"}


def crowded(cursor: str | None) -> Message:
    """A hundred thousand tools, a thousand a page."""
    start = int(cursor or 0)
    tools = [tool(f"tool_{number}") for number in range(start, start + 1000)]
    return {"tools": tools, **({"nextCursor": str(start + 1000)} if start + 1000 < 100_000 else {})}


def nested(name: str, containers: int) -> Message:
    """A tool whose schema holds this many empty containers: 4 bytes each as JSON, a hundred once parsed."""
    return {"name": name, "inputSchema": {"type": "object", "x": [[]] * containers}}


too_dense = one_page(nested("dense", 1_000_000))
as_dense_as_allowed = one_page(*(nested(f"dense_{number}", 9_000) for number in range(8)))
too_dense_tools = one_page(*(nested(f"dense_{number}", 12_000) for number in range(6)), tool("good"))


MIXED_TOOLS: tuple[object, ...] = (
    tool("good_1"),
    {"name": "no_schema", "description": "has no input schema"},
    {"name": "array_schema", "inputSchema": []},
    {"name": "empty_schema", "inputSchema": {}},
    {"inputSchema": {"type": "object"}},
    {"name": 7, "inputSchema": {"type": "object"}},
    {"name": "bad_annotation", "inputSchema": {"type": "object"}, "annotations": "none"},
    "not even an object",
    None,
    tool("good_2"),
    tool("good_1", "The second of this name."),
    tool("nul\x00inside"),
    tool("x" * 129),
    tool("too_large", "y" * 70_000),
    tool("good_3"),
)
"""Three good tools and twelve that must be left out, for a limit of 65,536 bytes a tool."""


def _unparsable(name: str, description: bytes, more: bytes = b"") -> bytes:
    schema = b'"inputSchema": {"type": "object"' + more + b"}"
    return b'{"name": "%s", "description": "%s", %s}' % (name.encode(), description, schema)


UNPARSABLE_TOOLS: tuple[bytes, ...] = (
    json.dumps(tool("good_1")).encode(),
    _unparsable("surrogate", rb"half of \ud83d a character"),
    _unparsable("digits", b"", b', "maximum": ' + b"7" * 5_000),
    _unparsable("levels", b"", b', "x": ' + b"[" * 210 + b"]" * 210),
    _unparsable("control", b"a bell: \x07"),
    _unparsable("latin", b"caf\xe9"),
    _unparsable("lat\xefn", b"its name").replace("\xef".encode(), b"\xef"),
    json.dumps(tool("good_2")).encode(),
)
"""Two good tools, three that must be left out, and two with a replaced character, which no strict parser accepts."""


def unparsable_page(request: Message) -> bytes:
    """Return a page of these tools, in one line."""
    tools = b", ".join(UNPARSABLE_TOOLS)
    return b'{"jsonrpc": "2.0", "id": %s, "result": {"tools": [%s]}}' % (json.dumps(request["id"]).encode(), tools)
