"""Minimal edits of TOML: each server is a table at the top level of the text."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

_HEADER = re.compile(r"\s*\[")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def parse(text: str) -> object:
    """Return the value of a text; raise ValueError if it has none."""
    return tomllib.loads(text)


def put(text: str, key: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text with these tables of `key` at its end."""
    for name in entries.keys() & tomllib.loads(text).get(key, {}).keys():
        text = drop(text, key, name)
    separator = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + separator + rendered(key, entries)


def drop(text: str, key: str, name: str) -> str:
    """Return the text without this table of `key` and the tables below it."""
    kept: list[str] = []
    skipped: list[str] | None = None
    for line in text.splitlines(keepends=True):
        if _HEADER.match(line):
            kept += _after_table(skipped or [])
            skipped = [] if _path(line)[:2] == [key, name] else None
            if skipped == [] and kept and not kept[-1].strip():
                kept.pop()
        (kept if skipped is None else skipped).append(line)
    return "".join([*kept, *_after_table(skipped or [])])


def rendered(key: str, servers: Mapping[str, Any]) -> str:
    """Return these servers as a document."""
    return "\n".join(_table(key, name, value) for name, value in servers.items())


def _after_table(lines: Sequence[str]) -> list[str]:
    """Return the last lines of a table that may belong to the next: comments, and the empty line before them."""
    at = len(lines)
    while at and (not lines[at - 1].strip() or lines[at - 1].lstrip().startswith("#")):
        at -= 1
    return list(lines[at:])


def _path(header: str) -> list[str]:
    """Return the names in the header of a table; an empty list if the line is no header."""
    try:
        found: object = tomllib.loads(header)
    except ValueError:
        return []
    names: list[str] = []
    while isinstance(found, dict) and found:
        name, found = next(iter(cast("dict[str, object]", found).items()))
        names.append(name)
    return names


def _table(key: str, name: str, value: Mapping[str, Any]) -> str:
    lines = (f"{_key(each)} = {_value(item)}\n" for each, item in value.items() if item is not None)
    return f"[{_key(key)}.{_key(name)}]\n{''.join(lines)}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return f"{{ {', '.join(f'{_key(name)} = {_value(item)}' for name, item in pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, cast('list[object]', value)))}]"
    return json.dumps(value, ensure_ascii=False)
