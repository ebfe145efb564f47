"""Text files of people: in the encoding of any editor, as JSON with comments, with the place of what is wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import json5

from shared.errors import ConfigInvalid
from shared.quoting import printable

_CURLY = re.compile("[\u2018-\u201f\u00ab\u00bb]")
# Comments, and the strings between them: an escape matters in strings alone.
_STRING = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?P<text>"(?:[^"\\\n]|\\.)*(?:"|$)|'(?:[^'\\\n]|\\.)*(?:'|$))""", re.DOTALL | re.MULTILINE
)
# What JSON has, and two that hide no backslash of a path: an escaped apostrophe, and a continued line.
_ESCAPE = re.compile(r"""\\(?P<valid>["'\\/bfnrt\r\n]|u[0-9A-Fa-f]{4})?""")


class Document(NamedTuple):
    """The value of a text, and the dotted paths of the keys that an object of it has twice; the last one counts."""

    value: Any
    repeated: tuple[str, ...] = ()


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, UTF-16 or UTF-32, without the byte order mark that it may have.

    Raises:
        ConfigInvalid: the file cannot be read, or has another encoding; the message names the line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigInvalid(f"{path}: {error.strerror or error}") from error
    encoding = json.detect_encoding(content)  # by the NULs of the first characters, where there is no mark
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        expected = encoding.upper().removesuffix("-SIG")
        raise ConfigInvalid(f"{path}: line {line}: it is not {expected}; save the file as UTF-8") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigInvalid(f"{path}: line {line}: a NUL character; the file is damaged, or is no text")
    return text


def parse_json(text: str) -> Document:
    """Return the value of JSON, also with comments and trailing commas; that of an empty text is an empty object.

    Raises:
        ValueError: the text is not JSON; the message names line and column, and the cure where it is known.
        RecursionError: it is nested too deeply.
    """
    found: list[tuple[dict[str, Any], str]] = []

    def object_of(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs := list(pairs))
        if len(members) < len(pairs):
            found.extend((members, name) for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        return members

    if not text.strip():
        return Document({})
    try:
        value = json.loads(text, object_pairs_hook=object_of)  # json5 took 3 s for 129 KB, and files have megabytes
    except ValueError:
        _reject_unknown_escapes(text)  # json5 drops their backslash
        found.clear()
        try:
            value = json5.loads(text, object_pairs_hook=object_of)
        except ValueError as error:
            # json5 writes `<string>:1 Unexpected end of input at column 2`
            place = re.fullmatch(r"<string>:(\d+) (.+) at column (\d+)", str(error), re.DOTALL)
            reason = f"line {place[1]}, column {place[3]}: {place[2].lower()}" if place else str(error)
            raise ValueError(reason + hint(text, reason)) from error
    return Document(value, tuple(map(printable, _paths(value, found))) if found else ())


def hint(text: str, reason: str) -> str:
    """Return the likely cure of an error in a line that the reason names, to be added to it; often empty."""
    named = re.search(r"\bline (\d+)", reason)
    line = text.split("\n")[int(named[1]) - 1] if named and int(named[1]) <= text.count("\n") + 1 else ""
    if quote := _CURLY.search(line):
        return f"; column {quote.start() + 1} has a curly quote: write straight ones"
    return r"; write each backslash of a path as \\" if "\\" in line else ""


def _reject_unknown_escapes(text: str) -> None:
    for string in _STRING.finditer(text):
        for escape in _ESCAPE.finditer(string["text"] or ""):
            if escape["valid"] is None:
                at = string.start() + escape.start()
                line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
                raise ValueError(rf"line {line}, column {column}: unknown escape; write each backslash of a path as \\")


def _paths(value: object, found: list[tuple[dict[str, Any], str]], path: str = "") -> list[str]:
    """Return the paths of these members of objects within the value."""
    paths: list[str] = []
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        paths += [path + name for holder, name in found if holder is members]
        for name, member in members.items():
            paths += _paths(member, found, f"{path}{name}.")
    elif isinstance(value, list):
        for member in cast("list[object]", value):
            paths += _paths(member, found, path)
    return paths
