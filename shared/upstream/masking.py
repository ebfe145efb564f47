"""Entries and messages without secrets.

In entries, values of variables and headers, and other likely secrets, are masked. In what a server sends, its own
credentials are: a server may repeat them by mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

import anyio.to_thread

from shared.upstream.commands import packages
from shared.upstream.target import SHORTEST, StdioTarget, secrets_of

if TYPE_CHECKING:
    from pydantic import BaseModel

MessageT = TypeVar("MessageT", bound="BaseModel")

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

_PATH = re.compile(r"([~.]{0,2}[\\/]|[A-Za-z]:).*")


class Mask:
    """Replaces the credentials of one server in what it sends; without credentials, nothing is read."""

    def __init__(self, credentials: Iterable[str]) -> None:
        """The longest credential comes first."""
        self._credentials = tuple(credentials)
        self._escaped = tuple(json.dumps(credential, ensure_ascii=False)[1:-1] for credential in self._credentials)

    def text(self, text: str) -> str:
        """Return the text with `***` in place of each credential, also as JSON writes it."""
        for credential in (*self._credentials, *self._escaped):
            text = text.replace(credential, HIDDEN)
        return text

    async def message(self, message: MessageT) -> MessageT:
        """Return the message with `***` in its texts and names, also those within; the same object without any."""
        if not self._credentials:
            return message
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
        if not any(escaped in text for escaped in self._escaped):
            return message
        # in a thread: a message of 150,000 values takes 0.2 s
        masked = await anyio.to_thread.run_sync(lambda: self._masked(json.loads(text)))
        return type(message).model_validate(masked, by_name=False)

    def value(self, value: object) -> object:
        """Return a JSON value with `***` in its texts and names."""
        return self._masked(value) if self._credentials else value

    def _masked(self, value: object) -> object:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._masked(item) for item in cast("list[object]", value)]
        if (parts := _object(value)) is not None:
            return {self.text(key): self._masked(item) for key, item in parts.items()}
        return value


def masked_servers(servers: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the masked entries of a file; a changed value with an unchanged mask is marked."""
    return {
        name: _marked(masked(entry), masked(before.get(name)), entry, before.get(name))
        for name, entry in servers.items()
    }


def masked(entry: object) -> object:
    """Return the masked entry; references to variables stay visible."""
    parts = _object(entry)
    if parts is None:
        return _hidden(entry)
    command = str(parts.get("command") or parts.get("cmd"))
    return {key: _masked_part(key, value, command) for key, value in parts.items()}


def _masked_part(key: str, value: object, command: str) -> object:
    if key in _SHOWN:
        return value
    if key in _URLS and isinstance(value, str):
        return _masked_url(value)
    if key in ("command", "cmd") and isinstance(value, str):
        # the command may hold arguments too
        program = value.partition(" -" if _PATH.fullmatch(value) else " ")[0]
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
    candidates = secrets_of(StdioTarget(command, tuple(words)))
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
    segments = parts.path.split("/")
    plain = [len(text) < SHORTEST or _PLAIN_SEGMENT.fullmatch(text) or _REFERENCE.fullmatch(text) for text in segments]
    path = "/".join(text if is_shown else HIDDEN for text, is_shown in zip(segments, plain, strict=True))
    query = "&".join(map(_masked_parameter, parts.query.split("&"))) if parts.query else ""
    return urlunsplit((parts.scheme, (HIDDEN if user else "") + at + host, path, query, HIDDEN * bool(parts.fragment)))


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
