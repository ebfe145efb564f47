"""The spellings that clients have for the keys of an entry, and for a server that is switched off.

The `mcp.json`, `toolscale add` and the import from every client read an entry through this table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from shared.errors import ConfigInvalid

KEYS: Mapping[str, tuple[str, ...]] = {
    "type": ("type", "transport", "transportType", "transport_type"),
    "command": ("command", "cmd"),
    "args": ("args", "arguments"),
    "env": ("env", "envs", "environment"),
    "cwd": ("cwd", "workingDirectory", "working_directory"),
    "url": ("url", "serverUrl", "server_url", "httpUrl", "http_url", "sseUrl", "baseUrl", "uri", "endpoint"),
    "headers": ("headers", "http_headers", "httpHeaders"),
    "timeout": ("timeout", "tool_timeout", "toolTimeout"),
}
"""The keys of an `mcp.json`, each with all of its spellings."""

SPELLINGS = frozenset(spelling for spellings in KEYS.values() for spelling in spellings)

# by the letters of the value: `HTTP`, `streamable_http`, `http-stream`
_TYPES = {
    **dict.fromkeys(("stdio", "local"), "stdio"),
    **dict.fromkeys(
        ("http", "https", "remote", "streamable", "streamablehttp", "httpstream", "httpstreamable"), "http"
    ),
    **dict.fromkeys(("httpstreaming", "streaminghttp"), "http"),
    **dict.fromkeys(("sse", "httpsse", "serversentevents"), "sse"),
}
_TYPE_OF_URL = {"httpUrl": "http", "http_url": "http", "sseUrl": "sse"}

# by the letters of the key, with the value at which the server is on
_SWITCHES = {
    **dict.fromkeys(("enabled", "enable", "isenabled", "active", "isactive", "activated", "on"), True),
    **dict.fromkeys(("status", "state", "autostart", "autoconnect", "startup"), True),
    **dict.fromkeys(("disabled", "disable", "isdisabled", "inactive", "isinactive", "deactivated", "off"), False),
    **dict.fromkeys(("paused", "ispaused", "suspended", "stopped", "archived", "skip", "turnedoff"), False),
}
_STARTS = ("autostart", "autoconnect", "startup")
_POSITIONS = {
    **dict.fromkeys(("true", "1", "1.0", "yes", "y", "on"), True),
    **dict.fromkeys(("false", "0", "0.0", "no", "n", "off"), False),
}
_STATES = {
    **dict.fromkeys(("enabled", "active", "running", "started", "connected"), True),
    **dict.fromkeys(("disabled", "inactive", "stopped", "paused", "suspended"), False),
}

_DEEPEST = 50
# without those of a variable that is not UTF-8
_UNUSABLE = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")
_CONTROL = re.compile(r"[\x01-\x1f\x7f]")
# `C:\tools` and `.\bin` with single backslashes: the escapes of JSON are a tab and a backspace
_LOST_BACKSLASH = re.compile(r"[\b\f]|^[A-Za-z]:[\t\n\r]")


class Spelled(NamedTuple):
    """An entry under the keys of an `mcp.json`, without empty ones, and the key of the file for each of them."""

    entry: dict[str, Any]
    written: Mapping[str, str]


def spelled(name: str, raw: object) -> Spelled:
    """Return an entry in one spelling; keys that have only one stay as they are.

    Raises:
        ConfigInvalid: keys contradict each other, or a text cannot be used; the message begins with the server, has the
            keys as they are written, and quotes no value.
    """
    if not isinstance(raw, dict):
        raise ConfigInvalid(f"{name}: entry: expected an object")
    entry: dict[str, Any] = {
        str(key): value for key, value in cast("dict[object, Any]", raw).items() if value is not None
    }
    for key, value in entry.items():
        _check_texts(name, key, value)
    written = _in_one_spelling(name, entry)
    _check_types(name, entry, written)
    if isinstance(entry.get("command"), list):  # opencode and Compose have program and arguments in one list
        if "args" in entry:
            raise _contradiction(name, written["command"], written["args"])
        entry["command"], *entry["args"] = entry["command"]
        written["args"] = written["command"]
    if (kind := _TYPE_OF_URL.get(written.get("url", ""))) and entry.setdefault("type", kind) != kind:
        raise _contradiction(name, written["type"], written["url"])
    if "command" in entry and "url" in entry and "type" not in entry:
        raise ConfigInvalid(f"{_contradiction(name, written['command'], written['url'])}, or add 'type'")
    return Spelled(entry, written)


def _check_types(name: str, entry: Mapping[str, Any], written: Mapping[str, str]) -> None:
    for key in ("env", "headers"):
        if not isinstance(entry.get(key, {}), dict):
            raise ConfigInvalid(f"{name}: {written[key]}: expected an object")
    for key in ("timeout", "tool_timeout_sec"):
        if isinstance(entry.get(key), bool):  # pydantic reads it as a second
            raise ConfigInvalid(f"{name}: {written.get(key, key)}: expected a number")


def _in_one_spelling(name: str, entry: dict[str, Any]) -> dict[str, str]:
    """Rename the keys of an entry, and return the keys that they had by their new ones."""
    written: dict[str, str] = {}
    for key, spellings in KEYS.items():
        found = {each: _read(key, entry.pop(each)) for each in spellings if each in entry}
        found = {each: value for each, value in found.items() if value not in ("", [], {})}
        if found:
            written[key], entry[key] = next(iter(found.items()))
            for other, value in found.items():
                if value != entry[key]:
                    raise _contradiction(name, written[key], other)
    return written


def is_switch(key: str) -> bool:
    """Return whether a key of an entry switches its server on and off."""
    return _letters(key) in _SWITCHES


def is_switched_off(name: str, raw: object) -> bool:
    """Return whether an entry is switched off, in the spelling of any client.

    Raises:
        ConfigInvalid: a switch has another value than on and off, or two contradict each other.
    """
    switches = (
        {str(key): value for key, value in cast("dict[object, object]", raw).items()} if isinstance(raw, dict) else {}
    )
    found: dict[bool, str] = {}
    for key, value in switches.items():
        letters = _letters(key)
        if letters not in _SWITCHES or value is None:
            continue
        word = str(value).strip().lower() if isinstance(value, str | int | float) else ""
        is_on = _STATES.get(word)  # of the server, not of the switch: `"disabled": "disabled"`
        if word in _POSITIONS:
            is_on = _POSITIONS[word] is _SWITCHES[letters]
        if is_on is None or (word in _STATES and is_on and not _SWITCHES[letters]):
            raise ConfigInvalid(f"{name}: {key}: expected true or false, since it may switch the server off")
        if not (is_on and letters in _STARTS):  # it may start, and yet be switched off
            found.setdefault(is_on, key)
    if len(found) > 1:
        raise _contradiction(name, *found.values())
    return False in found


def _contradiction(name: str, first: str, second: str) -> ConfigInvalid:
    return ConfigInvalid(f"{name}: {first} and {second} contradict each other; keep one of them")


def _read(key: str, value: Any) -> Any:
    """Return the value of a key in its usual form, and any other as it is: the model of an entry rejects that."""
    if key == "type" and isinstance(value, str):
        return _TYPES.get(_letters(value), value.strip())
    if key in ("command", "url", "cwd") and isinstance(value, str):
        scheme, separator, rest = value.strip().partition("://")
        return f"{scheme.lower()}{separator}{rest}" if separator and scheme.isalpha() else value.strip()
    if key == "args" and isinstance(value, str) and len(value.split()) == 1:
        return [value]
    if isinstance(value, list):
        return [_text(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {str(name): _text(item) for name, item in cast("dict[object, object]", value).items()}
    return value


def _text(value: object) -> object:
    """Return a number, such as a port, or a truth value as a text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _check_texts(name: str, key: str, value: object) -> None:
    is_program = key in KEYS["command"] + KEYS["cwd"]
    may_be_path = is_program or key in KEYS["args"] + KEYS["env"]
    for text in texts_of(name, value):
        if (may_be_path and _LOST_BACKSLASH.search(text)) or (is_program and _CONTROL.search(text.strip())):
            raise ConfigInvalid(rf"{name}: {key}: a control character; write each backslash of a path as \\")
        if _UNUSABLE.search(text):
            raise ConfigInvalid(f"{name}: {key}: a NUL character, or half of a character of UTF-16")


def texts_of(name: str, value: object) -> Iterator[str]:
    """Yield all texts in a value of a file, without recursion; `name` is that of the server, or of the file.

    Raises:
        ConfigInvalid: it is nested too deeply for the functions that read and write it.
    """
    values = [(value, 0)]
    while values:
        value, depth = values.pop()
        if depth > _DEEPEST:
            raise ConfigInvalid(f"{name}: nested too deeply")
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            values += [(item, depth + 1) for item in cast("list[object]", value)]
        elif isinstance(value, dict):
            members = cast("dict[object, object]", value)
            values += [(item, depth + 1) for item in (*members, *members.values())]


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())
