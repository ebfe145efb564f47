"""The tools that a caller may see, with their counts."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.recount.counting import Form, tool_tokens

Key = tuple[str, str]
"""A server and the name of its tool."""


class Upstream:
    """All raw tools of the servers, and the groups of each server."""

    def __init__(self, tools: Mapping[str, Iterable[dict[str, Any]]], groups: Mapping[str, frozenset[str]]) -> None:
        self.tools: dict[Key, dict[str, Any]] = {
            (server, tool["name"]): tool for server, listed in tools.items() for tool in listed
        }
        self._groups = groups
        self.count = functools.cache(self._count)

    def sum(self, keys: Iterable[Key], form: Form, encoding: str) -> int:
        """Return the tokens of these tools."""
        return sum(self.count(key, form, encoding) for key in keys)

    def in_groups(self, keys: Iterable[Key], groups: Iterable[str] | None) -> frozenset[Key]:
        """Return the tools of servers with one of these groups; None admits all."""
        wanted = None if groups is None else frozenset(groups)
        return frozenset(key for key in keys if wanted is None or wanted & self._groups.get(key[0], frozenset()))

    def _count(self, key: Key, form: Form, encoding: str) -> int:
        return tool_tokens(key[0], self.tools[key], form, encoding)


@dataclass(frozen=True, slots=True)
class CallerPlan:
    """A caller of the session; `toolset` is the one of its token. Its budget is enforced."""

    name: str
    token: str
    groups: tuple[str, ...] | None = None
    toolset: str | None = None
    budget_tokens: int | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Visible:
    """The tools of a caller on a path.

    `possible` has the tools without the limit of a toolset, and `listed` the names in `tools/list`.
    """

    caller: CallerPlan
    toolset: str | None
    scope: frozenset[Key]
    possible: frozenset[Key]
    listed: frozenset[str] = frozenset()

    @property
    def offered(self) -> frozenset[Key]:
        """Return the tools of the toolset in `tools/list`."""
        if self.toolset is None:
            return frozenset()
        return frozenset(key for key in self.scope if "__".join(key) in self.listed)


def visible(caller: CallerPlan, path: str, toolsets: Mapping[str, Iterable[str]], upstream: Upstream) -> Visible:
    """Return the tools of this caller on this path: its groups', within its own toolset or the path's."""
    named = path.removeprefix("/mcp").strip("/") or None
    toolset = caller.toolset or named
    possible = upstream.in_groups(upstream.tools, caller.groups)
    scope = possible if toolset is None else _within(possible, toolsets.get(toolset, ()))
    return Visible(caller, toolset, scope, possible)


def _within(keys: Iterable[Key], entries: Iterable[str]) -> frozenset[Key]:
    admitted = set(entries)
    return frozenset(key for key in keys if key[0] in admitted or f"{key[0]}:{key[1]}" in admitted)
