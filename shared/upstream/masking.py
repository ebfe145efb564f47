"""Entries without secrets: values of variables and headers, and other likely secrets, are masked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from shared.upstream.dial import StdioTarget
from shared.upstream.packages import packages, program_of
from shared.upstream.secrets import SHORTEST, secrets_of

HIDDEN = "***"
CHANGED = "(changed)"

_SHOWN = ("type", "cwd", "groups", "labels", "disabled", "name", "description", "source", "timeout", "tools")
_URLS = ("url", "serverUrl", "httpUrl", "uri")
_REFERENCE = re.compile(r"([A-Za-z]+ )?\$\{(env:)?[A-Za-z_]\w*\}")  # `Bearer ${TOKEN}` names a secret
_HEADER_NAME = re.compile(r"[A-Za-z-]+:")
_SECRET_NAME = re.compile(r"key|token|secret|passw|pwd|auth|credential", re.IGNORECASE)
_ASSIGNED = re.compile(r"(?P<name>-{0,2}[A-Za-z][\w.-]*)=(?P<value>.*)", re.DOTALL)
_BEFORE_VARIABLE = ("-e", "--env")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=|[A-Z_][A-Z0-9_]*$")
_PLAIN_SEGMENT = re.compile(r"@?[a-z]+([-_.@][a-z]+)*")


def masked_servers(servers: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the masked entries of a file; a changed value with an unchanged mask is marked."""
    return {
        name: _marked(masked(entry), masked(before.get(name)), entry, before.get(name))
        for name, entry in servers.items()
    }


def masked(entry: object) -> object:
    """Return the masked entry; references to variables stay visible."""
    parts = _object(entry)
    return (
        _hidden(entry)
        if parts is None
        else {
            key: _masked_part(key, value, str(parts.get("command") or parts.get("cmd"))) for key, value in parts.items()
        }
    )


def _masked_part(key: str, value: object, command: str) -> object:
    if key in _SHOWN:
        return value
    if key in _URLS and isinstance(value, str):
        return _masked_url(value)
    if key in ("command", "cmd") and isinstance(value, str):
        program = program_of(value)
        return program + " ".join(_masked_words(value.removeprefix(program).split(" "), program))
    if key == "args" and isinstance(value, list):
        return _masked_words([str(word) for word in cast("list[object]", value)], command)
    if key == "command" and isinstance(value, list):
        words = [str(word) for word in cast("list[object]", value)]
        return [*words[:1], *_masked_words(words[1:], "".join(words[:1]))]
    return _hidden(value)


def _hidden(value: object) -> object:
    if (parts := _object(value)) is not None:
        return {key: _hidden(item) for key, item in parts.items()}
    is_plain = value is None or isinstance(value, bool) or value in ([], "")
    return value if is_plain or (isinstance(value, str) and _REFERENCE.fullmatch(value)) else HIDDEN


def _masked_words(words: Sequence[str], command: str) -> list[str]:
    candidates = secrets_of(StdioTarget("", tuple(words)))
    secrets = [secret for secret in candidates if not (_REFERENCE.search(secret) or _HEADER_NAME.fullmatch(secret))]
    shown = packages(command, words)
    return [
        word if at in shown else _masked_word(before, word, secrets)
        for at, (before, word) in enumerate(pairwise(("", *words)))
    ]


def _masked_word(before: str, word: str, secrets: Sequence[str]) -> str:
    if before.startswith("-") and "=" not in before and _SECRET_NAME.search(before):
        return str(_hidden(word))
    if before in _BEFORE_VARIABLE and _VARIABLE.match(word):
        return _masked_parameter(word) if "=" in word else word
    assigned = _ASSIGNED.fullmatch(word)
    if assigned and _SECRET_NAME.search(assigned["name"]):
        return f"{assigned['name']}={_hidden(assigned['value'])}"
    for secret in secrets:
        word = word.replace(secret, HIDDEN)
    return word


def _masked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    user, at, host = parts.netloc.rpartition("@")
    path = "/".join(map(_masked_segment, parts.path.split("/")))
    query = "&".join(map(_masked_parameter, parts.query.split("&"))) if parts.query else ""
    return urlunsplit((parts.scheme, (HIDDEN if user else "") + at + host, path, query, HIDDEN * bool(parts.fragment)))


def _masked_segment(segment: str) -> str:
    if len(segment) < SHORTEST or _PLAIN_SEGMENT.fullmatch(segment) or _REFERENCE.fullmatch(segment):
        return segment
    return HIDDEN


def _masked_parameter(parameter: str) -> str:
    name, separator, value = parameter.partition("=")
    return f"{name}={_hidden(value)}" if separator else HIDDEN


def _marked(shown: object, shown_before: object, now: object, before: object) -> object:
    """Mark a changed value if its mask did not change."""
    parts, parts_before = _object(shown), _object(shown_before) or {}
    if parts is not None:
        values, values_before = _object(now) or {}, _object(before) or {}
        return {
            key: _marked(part, parts_before.get(key), values[key], values_before.get(key))
            for key, part in parts.items()
        }
    if shown != shown_before or now == before:
        return shown
    return [*cast("list[object]", shown), CHANGED] if isinstance(shown, list) else f"{shown} {CHANGED}"


def _object(value: object) -> dict[str, object] | None:
    return cast("dict[str, object]", value) if isinstance(value, dict) else None
