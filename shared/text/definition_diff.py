"""The difference of two definitions for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import unified_diff


def definition_diff(before: str | None, after: str | None, names: tuple[str, str]) -> list[str]:
    """Return a unified diff of two definitions in JSON, with escapes for invisible characters; None has no lines.

    Keys are sorted, and each line of a text is a line of the diff. `names` are the names of both sides.
    """
    return list(unified_diff(_lines(before), _lines(after), *names, lineterm=""))


def _lines(definition: str | None) -> list[str]:
    """Return the definition as indented JSON with sorted keys, and a line for each line of a text."""
    if definition is None:
        return []
    text = json.dumps(json.loads(definition), indent=2, sort_keys=True, ensure_ascii=False)
    return [_visible(part) for line in text.splitlines() for part in _parts(line)]


def _parts(line: str) -> Iterator[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    first, *others = line.replace("\\\\", "\\\\\0").split("\\n")
    for part in (first, *(f"{indent}  {other}" for other in others)):
        yield part.replace("\\\\\0", "\\\\")


def _visible(line: str) -> str:
    return "".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" for sign in line)
