"""A server over stdin and stdout in a few lines of the standard library, for programs that misbehave around it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

Call = Callable[[str, dict[str, Any]], str]


def send(**message: Any) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def serve(call: Call, tools: Callable[[], list[str]] = lambda: ["echo"]) -> None:
    """Answer each line of stdin until its end; `call` returns the text of a result."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, params = message["method"], message.get("params", {})
        if method == "initialize":
            result: dict[str, Any] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "scripted", "version": "1"},
            }
        elif method == "tools/list":
            schema = {"type": "object"}
            result = {"tools": [{"name": name, "description": name, "inputSchema": schema} for name in tools()]}
        elif method == "tools/call":
            result = {"content": [{"type": "text", "text": call(params["name"], params.get("arguments") or {})}]}
        elif method == "ping":
            result = {}
        else:
            send(id=message["id"], error={"code": -32601, "message": "Method not found"})
            continue
        send(id=message["id"], result=result)
