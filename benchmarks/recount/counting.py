"""Token counts by tiktoken alone: none of the product's code for texts, forms or counts."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tiktoken

VOCABULARIES = Path(__file__).parents[2] / "shared" / "assets" / "tiktoken"


@functools.cache
def _encoding(name: str) -> tiktoken.Encoding:
    os.environ["TIKTOKEN_CACHE_DIR"] = str(VOCABULARIES)
    return tiktoken.get_encoding(name)


def tokens_of(value: object, encoding: str = "cl100k_base") -> int:
    """Return the tokens of a text, or of a JSON value as compact text."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(_encoding(encoding).encode(text, disallowed_special=()))


def recount(tools: Iterable[dict[str, Any]], encoding: str = "cl100k_base") -> dict[str, int]:
    """Return the tokens of these raw tools in the wire form and in each profile of the model form."""
    sums: dict[str, int] = dict.fromkeys(("wire", "generic", "anthropic", "openai"), 0)
    for tool in tools:
        fields = {key: value for key, value in tool.items() if key in ("name", "description", "inputSchema")}
        anthropic = {{"inputSchema": "input_schema"}.get(key, key): value for key, value in fields.items()}
        function = {{"inputSchema": "parameters"}.get(key, key): value for key, value in fields.items()}
        sums["wire"] += tokens_of(tool, encoding)
        sums["generic"] += tokens_of(fields, encoding)
        sums["anthropic"] += tokens_of(anthropic, encoding)
        sums["openai"] += tokens_of({"type": "function", "function": function}, encoding)
    return sums
