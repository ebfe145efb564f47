"""Minimal edits of JSON with comments and trailing commas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.upstream.documents import parse_json

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[{}\[\]:,]|[^\s{}\[\]:,"'/]+""",
    re.DOTALL,
)
_DEFAULT_INDENT = "  "


def parse(text: str) -> object:
    """Return the value of a text; raise ValueError if it has none."""
    return parse_json(text).value


def put(text: str, key: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text with these members of the object at `key`; the new ones are its first."""
    if not _tokens(text):
        text += "{}\n"
    root = _Object.at(text, _tokens(text), 0)
    section = root.member(key)
    if section is None:
        return root.with_first({key: entries})
    servers = _Object.at(text, root.tokens, section.value)
    new = {name: value for name, value in entries.items() if servers.member(name) is None}
    present = [(member, entries[member.name]) for member in servers.members if member.name in entries]
    for member, value in reversed(present):  # from the end, so that the positions before it stay
        start, end = servers.tokens[member.value].start(), servers.tokens[member.last].end()
        text = text[:start] + servers.dumped(value, servers.indent) + text[end:]
    return _Object.at(text, _tokens(text), servers.opening).with_first(new) if new else text


def drop(text: str, key: str, name: str) -> str:
    """Return the text without this member of the object at `key`."""
    root = _Object.at(text, _tokens(text), 0)
    section = root.member(key)
    assert section  # the caller has found the member
    return _Object.at(text, root.tokens, section.value).without(name)


def rendered(key: str, servers: Mapping[str, Any]) -> str:
    """Return these servers as a document."""
    return json.dumps({key: servers}, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object: its name, and the positions of its tokens."""

    name: str
    key: int
    value: int
    last: int


@dataclass(frozen=True, slots=True)
class _Object:
    text: str
    tokens: list[re.Match[str]]
    opening: int
    closing: int
    members: list[_Member]

    @classmethod
    def at(cls, text: str, tokens: list[re.Match[str]], opening: int) -> _Object:
        members, at = list[_Member](), opening + 1
        while tokens[at].group() != "}":
            if tokens[at].group() == ",":
                at += 1
                continue
            member = _Member(_name(tokens[at].group()), at, at + 2, _end(tokens, at + 2))
            members.append(member)
            at = member.last + 1
        return cls(text, tokens, opening, at, members)

    def member(self, name: str) -> _Member | None:
        return next((member for member in reversed(self.members) if member.name == name), None)

    def with_first(self, entries: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the text with new first members; a comment after the brace follows them."""
        start = self.tokens[self.opening].end()
        indent = self.indent
        members = [f"{json.dumps(name)}: {self.dumped(value, indent)}" for name, value in entries.items()]
        if indent is None:
            start = self.tokens[self.members[0].key].start()
            return f"{self.text[:start]}{', '.join(members)}, {self.text[start:]}"
        body = f",\n{indent}".join(members)
        end = "," if self.members else ""
        if not self.members and "\n" not in self.text[start : self.tokens[self.closing].start()]:
            end = f"\n{self._line_indent}"
        return f"{self.text[:start]}\n{indent}{body}{end}{self.text[start:]}"

    def without(self, name: str) -> str:
        member = self.member(name)
        assert member  # the caller has found it
        before, after = self.tokens[member.key - 1], self.tokens[member.last + 1]
        start, end = self.tokens[member.key].start(), self.tokens[member.last].end()
        kept = self.text[:start].rstrip()
        if after.group() == ",":
            rest = self.text[after.end() :]
            return kept + (rest.lstrip(" ") if len(kept) == start else rest)
        if "//" in kept[before.end() :]:
            kept += "\n"  # else the rest would belong to the comment
        if before.group() == ",":
            kept = kept[: before.start()] + kept[before.end() :]
        rest = self.text[end:]
        return kept + (rest.lstrip() if kept.endswith("{") and rest.lstrip().startswith("}") else rest)

    @property
    def indent(self) -> str | None:
        """Return the indentation of a member; None if the object is on one line with its members."""
        if not self.members:
            return self._line_indent + _unit(self.text)
        before = self.text[self.tokens[self.opening].end() : self.tokens[self.members[0].key].start()]
        return before.rpartition("\n")[2] if "\n" in before else None

    @property
    def _line_indent(self) -> str:
        line = self.text[: self.tokens[self.opening].start()].rpartition("\n")[2]
        return line[: len(line) - len(line.lstrip())]

    def dumped(self, value: Mapping[str, Any], indent: str | None) -> str:
        if indent is None:
            return json.dumps(value)
        return json.dumps(value, indent=_unit(self.text)).replace("\n", f"\n{indent}")


def _tokens(text: str) -> list[re.Match[str]]:
    return [token for token in _TOKEN.finditer(text) if token["space"] is None]


def _end(tokens: list[re.Match[str]], at: int) -> int:
    """Return the position of the last token of the value that begins here."""
    depth = 0
    while True:
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(tokens[at].group(), 0)
        if depth == 0:
            return at
        at += 1


def _name(token: str) -> str:
    return str(parse(token)) if token[0] in "\"'" else token


def _unit(text: str) -> str:
    """Return the indentation of a level: that of the first indented line."""
    found = re.search(r"\n([ \t]+)[\"'\w]", text)
    return found[1] if found else _DEFAULT_INDENT
