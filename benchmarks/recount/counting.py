"""Token counts by tiktoken alone: none of the product's code for texts, forms or counts."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import tiktoken

VOCABULARIES = Path(__file__).parents[2] / "shared" / "assets" / "tiktoken"

Form = Literal["wire", "model"]
Raw = Mapping[str, Any]


def tokens_of(value: object, encoding: str = "cl100k_base") -> int:
    """Return the tokens of a text, or of a JSON value as compact text."""
    text = value if isinstance(value, str) else compact(value)
    if encoding == "heuristic":
        return sum(map(_tokens_of_word, text.split()))
    return len(_encoding(encoding).encode(text, disallowed_special=()))


def compact(value: object) -> str:
    """Return a JSON value as its shortest text, with its keys in order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def model_fields(tool: Raw) -> dict[str, Any]:
    """Return the fields that a model API receives."""
    return {key: value for key, value in tool.items() if key in ("name", "description", "inputSchema")}


def tool_tokens(server: str, tool: Raw, form: Form, encoding: str = "cl100k_base") -> int:
    """Return the tokens of a server's tool; the heuristic reads its qualified name, description and input schema."""
    if encoding == "heuristic":
        schema = compact(tool["inputSchema"]) if "inputSchema" in tool else ""
        return tokens_of(f"{server}:{tool['name']} {tool.get('description') or ''} {schema}", encoding)
    return tokens_of(tool if form == "wire" else model_fields(tool), encoding)


def recount(tools: Iterable[Raw], encoding: str = "cl100k_base") -> dict[str, int]:
    """Return the tokens of these raw tools in the wire form and in each profile of the model form."""
    sums: dict[str, int] = dict.fromkeys(("wire", "generic", "anthropic", "openai"), 0)
    for tool in tools:
        fields = model_fields(tool)
        anthropic = {{"inputSchema": "input_schema"}.get(key, key): value for key, value in fields.items()}
        function = {{"inputSchema": "parameters"}.get(key, key): value for key, value in fields.items()}
        sums["wire"] += tokens_of(tool, encoding)
        sums["generic"] += tokens_of(fields, encoding)
        sums["anthropic"] += tokens_of(anthropic, encoding)
        sums["openai"] += tokens_of({"type": "function", "function": function}, encoding)
    return sums


@functools.cache
def _encoding(name: str) -> tiktoken.Encoding:
    os.environ["TIKTOKEN_CACHE_DIR"] = str(VOCABULARIES)
    return tiktoken.get_encoding(name)


def _tokens_of_word(word: str) -> int:
    """Return 1 for at most 3 characters, a fifth of 4 to 7, a quarter of more, rounded up."""
    if len(word) <= 3:
        return 1
    return math.ceil(len(word) / 5) if len(word) <= 7 else math.ceil(len(word) / 4)
