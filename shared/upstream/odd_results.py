"""Results with an odd part: what can be read of them arrives, and what is left out is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, cast

from mcp_types.methods import MONOLITH_RESULTS, SERVER_RESULTS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from shared.catalog import object_of

Json = dict[str, Any]

# The lists of results whose items do not depend on each other.
_LISTS = {
    "tools/call": "content",
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
# Below these, null is a value of the server's own.
_FREE = ("structuredContent", "inputSchema", "outputSchema", "_meta", "requestState")
# What a block needs; its other parts may be left out.
_NEEDED: Mapping[object, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
    "resource": ("resource",),
}
_MOST_NAMED = 10
MANY_ITEMS = 200
"""Checking more items of a list takes too long for an event loop."""


def items_of(method: str, result: Json) -> Collection[object]:
    """Return the items of the list in a result of this method; none if it has no list."""
    items = result.get(_LISTS.get(method, ""))
    return cast("list[object]", items) if isinstance(items, list) else ()


def readable(method: str, version: str, result: Json, quote: Callable[[str], str]) -> tuple[Json, list[str]]:
    """Return the result as the protocol demands it in this version, and what is left out, in the words of `quote`.

    The result of a tool says that in a text. A result that cannot be mended stays as it is.
    """
    if not _wrong_keys(method, version, result):
        return result, []
    left_out: list[str] = []
    mended = cast("Json", _without_nulls(result))
    if method == "tools/call":
        mended = _as_call_result(mended, version, left_out)
    elif method == "initialize":
        mended = _as_initialized(mended)
    name = _LISTS.get(method, "")
    rest: Json = {**mended, name: []} if name in mended else mended
    for key in _wrong_keys(method, version, rest) & rest.keys() - {name, "resultType"}:
        left_out.append(f"{key}: {quote(_as_text(rest[key]))}")
        rest = {other: part for other, part in rest.items() if other != key}
    if _wrong_keys(method, version, rest):
        return result, []
    if name in mended:
        rest = {**rest, name: _readable_items(method, version, rest, items_of(method, mended), quote, left_out)}
    if left_out and method == "tools/call":
        more = [f"{len(left_out)} parts in all"] if left_out[_MOST_NAMED:] else []
        named = "; ".join([*left_out[:_MOST_NAMED], *more])
        rest[name].append(_text(f"[Toolscale: the tool has run; not readable in its result: {named}]"))
    return rest, left_out


def _readable_items(
    method: str,
    version: str,
    rest: Json,
    items: Collection[object],
    quote: Callable[[str], str],
    left_out: list[str],
) -> list[object]:
    """Return the valid items of a result's list, and what is valid of the others."""
    name, kept = _LISTS[method], cast("list[object]", [])
    for at, item in enumerate(items):
        forms = (form for form in (item, _needed(item)) if not _wrong_keys(method, version, {**rest, name: [form]}))
        form = next(forms, None)
        kept += [] if form is None else [form]
        if form is None or form is not item:
            left_out.append(f"{'a part of ' if form else ''}{name}[{at}]: {quote(_as_text(item))}")
    return kept


@cache
def _forms(method: str, version: str) -> tuple[TypeAdapter[Any], ...]:
    """Return the types that the SDK validates a result by: that of the version, and its own."""
    wire: Any = SERVER_RESULTS.get((method, version))
    own: Any = MONOLITH_RESULTS.get(method)
    return (TypeAdapter(wire), TypeAdapter(own)) if wire and own else ()


def _wrong_keys(method: str, version: str, result: Json) -> set[str]:
    """Return the keys of the result that are missing or have a wrong value."""
    try:
        for form in _forms(method, version):
            form.validate_python(result, by_name=False)
    except ValidationError as error:
        # the name of a type is a part of the path where there are several
        paths = ((part for part in problem["loc"] if not str(part)[:1].isupper()) for problem in error.errors())
        return {str(next(path, "")) for path in paths}
    return set()


def _without_nulls(value: object) -> object:
    if isinstance(value, list):
        return [_without_nulls(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        parts = cast("Json", value).items()
        return {key: part if key in _FREE else _without_nulls(part) for key, part in parts if part is not None}
    return value


def _as_call_result(result: Json, version: str, left_out: list[str]) -> Json:
    """Return the result of a tool with a list as its content, in place of the forms that some servers have."""
    if "content" not in result and "toolResult" in result:  # of the first revision
        inner: Any = result["toolResult"]
        result = cast("Json", inner) if "content" in object_of(inner) else {**result, "content": inner}
    content: object = result.get("content")
    structured: object = result.get("structuredContent")
    blocks = [_as_block(item) for item in (cast("list[object]", content) if isinstance(content, list) else [content])]
    if content is None:
        blocks = []
        left_out += ["content: missing"] if structured is None else []
    # before 2026-07-28, structured content is an object
    is_of_version = structured in (None, object_of(structured)) or version in MODERN_PROTOCOL_VERSIONS
    if structured is not None and (content is None or not is_of_version) and not _says(blocks, structured):
        blocks.append(_text(_as_text(structured)))
    shown = {key: part for key, part in result.items() if key != "structuredContent" or is_of_version}
    return {"resultType": "complete", **shown, "content": blocks}


def _as_block(item: object) -> object:
    """Return a text block for a text, for data, and for a text block with data in place of its text."""
    own = object_of(item)
    block = own if own.keys() & {"text", "type"} else {"text": item}
    if item is None or block.get("type", "text") != "text" or "text" not in block:
        return item
    is_text = isinstance(block["text"], str)
    return {"type": "text", **block, **({} if is_text else {"text": _as_text(block["text"])})}


def _as_initialized(result: Json) -> Json:
    """Return the result of `initialize` with objects as capabilities, and a name and a version of the server."""
    has, about = (object_of(result.get(key)) for key in ("capabilities", "serverInfo"))
    capabilities = {key: object_of(part) for key, part in has.items() if part is not False}
    info = {**about, **{key: str(about.get(key, "")) for key in ("name", "version")}}
    return {**result, "capabilities": capabilities, "serverInfo": info}


def _needed(item: object) -> Json | None:
    block = object_of(item)
    kind = block.get("type")
    needed = _NEEDED.get(kind, ()) if isinstance(kind, str) else ()
    return {key: block[key] for key in ("type", *needed) if key in block} if needed else None


def _says(blocks: list[object], value: object) -> bool:
    return any(_parsed(object_of(block).get("text")) == value for block in blocks)


def _parsed(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _as_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
