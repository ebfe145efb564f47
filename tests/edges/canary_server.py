"""A server that repeats its credential by every path; a tool is named for the path."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from lines import send  # type: ignore[import-not-found]  # beside this program, which runs alone

KEY = os.environ["API_KEY"]
PATHS = ("results", "errors", "progress", "logs", "stderr", "not-json", "links", "resources")


def tool(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"x": {"type": "string", "description": KEY, "default": KEY}}}
    return {
        "name": name,
        "title": f"Title {KEY}",
        "description": f"Tests {name} of a canary with {KEY}.",
        "inputSchema": schema,
        "annotations": {"title": KEY},
    }


def called(name: str, token: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": f"the key is {KEY}"}]
    if name == "errors":
        return {"error": {"code": -32000, "message": KEY, "data": {KEY: KEY}}}
    if name == "progress":
        send(method="notifications/progress", params={"progressToken": token, "progress": 1, "message": KEY})
    if name == "logs":
        send(method="notifications/message", params={"level": "error", "logger": KEY, "data": {KEY: [KEY]}})
    if name == "stderr":
        sys.stderr.write(f"the key is {KEY}\n")
        sys.stderr.flush()
    if name == "not-json":
        sys.stdout.write(f"the key is {KEY}\n")
    if name == "links":
        content = [{"type": "resource_link", "uri": f"x://{KEY}", "name": KEY, "title": KEY, "description": KEY}]
    if name == "resources":
        content = [{"type": "resource", "resource": {"uri": f"x://{KEY}", "text": KEY}}]
    return {"result": {"content": content, "structuredContent": {KEY: KEY}, "_meta": {"x/y": KEY}}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer: dict[str, Any] = {"error": {"code": -32601, "message": f"no {KEY}"}}
    if message["method"] == "initialize":
        info = {"name": KEY, "title": KEY, "version": KEY}
        capabilities: dict[str, Any] = {"tools": {}, "logging": {}}
        answer = {
            "result": {
                "protocolVersion": "2025-06-18",
                "capabilities": capabilities,
                "serverInfo": info,
                "instructions": KEY,
            }
        }
    elif message["method"] == "tools/list":
        answer = {"result": {"tools": [tool(name) for name in PATHS]}}
    elif message["method"] == "tools/call":
        params = message["params"]
        answer = called(params["name"], (params.get("_meta") or {}).get("progressToken"))
    send(id=message["id"], **answer)
