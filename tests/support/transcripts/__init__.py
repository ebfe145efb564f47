"""Transcripts of docs/tools.md: calls of tools and their answers, from a run on real servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transcript:
    """One call that the document shows, in the section of its tool."""

    tool: str
    arguments: Mapping[str, Any]

    @property
    def marker(self) -> str:
        """Return the line that its answer stands below."""
        return f"<!-- {self.tool} {json.dumps(self.arguments)} -->"

    def block(self, result: Mapping[str, Any]) -> str:
        """Return the call and its result as the document shows them."""
        params = {"name": self.tool, "arguments": self.arguments}
        return "\n".join(
            (self.marker, "```json", json.dumps(params, indent=2), "```", "", "```json", _short(result), "```")
        )


def _short(result: Mapping[str, Any]) -> str:
    """Return a result's text; without structured content of the same meaning, so that all is shown once."""
    texts = [block["text"] for block in result["content"] if block["type"] == "text"]
    structured = result.get("structuredContent")
    return json.dumps(structured, indent=2, ensure_ascii=False) if structured else "\n".join(texts)


TRANSCRIPTS = (
    Transcript("find_tool", {"tool_description": "what time is it in another timezone", "limit": 1}),
    Transcript(
        "call_tool",
        {
            "tool_name": "time:convert_time",
            "parameters": {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
        },
    ),
    Transcript("list_available_tools", {"servers": ["time", "sqlite"]}),
)
