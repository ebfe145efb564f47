"""The request of `find_tool`, its filters, and warnings about names of nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from query.absent import absences
from query.answers.budget import CursorText, MaxTokens, ToolRequest
from query.replicas import MAX_NAMESAKES, split_name, without_digest
from shared.catalog import Encoding, Scope, point_id
from shared.settings import ResponseMode
from shared.validation import nearest_names

if TYPE_CHECKING:
    from query.records import Ledger
    from shared.index.tools import ToolIndex

# More would crowd out the tools of a short answer.
SHOWN = 3
SHOWN_CHARACTERS = 60

Description = Annotated[str, Field(max_length=4_000)]
KeywordText = Annotated[str, Field(max_length=200)]
ToolName = Annotated[str, Field(max_length=300)]


def _as_list(names: object) -> object:
    return [names] if isinstance(names, str) else names


ToolNames = Annotated[list[ToolName], Field(max_length=200), BeforeValidator(_as_list)]
"""At most 200 names; a text is one name."""


class FindRequest(ToolRequest):
    """The search, its filters and its detail level. At least one description or keyword is not blank."""

    aliases: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("query", "task", "description"), "tool_description"),
        **dict.fromkeys(("max_results", "top_k"), "limit"),
    }

    tool_description: Description | Annotated[list[Description], Field(max_length=20)]
    """What the tool should do; a list of steps finds tools for each."""
    tool_keywords: Annotated[
        KeywordText | Annotated[list[KeywordText], Field(max_length=50)] | None, WithJsonSchema({"type": "string"})
    ] = None
    """Words likely in its name or parameters."""
    limit: Annotated[int, Field(ge=1, le=50)] = 8
    """At most this many tools."""
    servers: ToolNames | None = None
    """Only these servers."""
    groups: ToolNames | None = None
    """Only these groups."""
    read_only: bool = False
    """Only tools declared to change nothing."""
    exclude: ToolNames | None = None
    """Not these, named as in an answer."""
    detail: ResponseMode | None = None
    """auto: detailed if that fits; full: every field."""
    encoding: SkipJsonSchema[Encoding | None] = None
    """What the tokens are counted in."""
    max_tokens: SkipJsonSchema[MaxTokens | None] = None
    """The most tokens of the answer."""
    cursor: CursorText | None = None
    """nextCursor of the last answer."""

    @model_validator(mode="after")
    def _says_something(self) -> FindRequest:
        if not self.steps:
            raise ValueError("tool_description: say in a few words what the tool should do")
        return self

    @property
    def steps(self) -> list[str]:
        """Return one query per step, each with the keywords at its end, without blank steps."""
        described = [self.tool_description] if isinstance(self.tool_description, str) else self.tool_description
        keywords = [self.tool_keywords] if isinstance(self.tool_keywords, str) else self.tool_keywords or []
        steps = [step for step in described if step.strip()] or [""]
        return [query for step in steps if (query := " ".join([step, *keywords]).strip())]

    @property
    def question(self) -> str:
        """Return a digest of the search: all pages of one search share it.

        The number of tools and the detail level may differ from page to page.
        """
        filters = {name: sorted(getattr(self, name) or ()) for name in ("servers", "groups", "exclude")}
        canonical = json.dumps([self.steps, self.read_only, filters])
        return hashlib.sha256(canonical.encode()).hexdigest()

    def narrow(self, allowed: Scope) -> Scope:
        """Return the part of the allowed scope that this request names."""
        if self.groups is None and self.servers is None and not (self.read_only or self.exclude):
            return allowed
        return replace(
            allowed,
            groups=intersection(allowed.groups, self.groups),
            servers=intersection(allowed.servers, self.servers),
            read_only=allowed.read_only or self.read_only,
            exclude=allowed.exclude | frozenset(self.exclude or ()),
        )


def intersection(allowed: frozenset[str] | None, requested: list[str] | None) -> frozenset[str] | None:
    """Return the names that are both allowed and requested; None: no restriction."""
    if requested is None:
        return allowed
    return frozenset(requested) if allowed is None else allowed.intersection(requested)


def excluded_definitions(
    names: Collection[str], allowed: Scope, representatives: Scope, index: ToolIndex
) -> frozenset[str]:
    """Return the digests of these tools of the allowed scope, named `server:tool` or `tool@digest`.

    The representatives have all definitions of the scope. A name without a server or digest has none here: the filter
    by name excludes it on all servers.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    ids = [point_id(*split_name(name)) for name in names if ":" in name]
    on_servers = {tool.digest for tool in index.get(ids).values() if allowed.contains(tool)} if ids else set[str]()
    shortened = {tool_name for name in names if (tool_name := without_digest(name)) != name}
    found = index.tool_names(shortened, representatives, MAX_NAMESAKES) if shortened else []
    by_digest = {tool.digest for tool in found if f"{tool.name}@{tool.digest[:8]}" in names}
    return frozenset(on_servers | by_digest).difference({""})


def filter_warnings(
    servers: Sequence[str] | None, groups: Sequence[str] | None, allowed: Scope, ledger: Ledger
) -> list[str]:
    """Return sentences about those of these servers and groups that the allowed scope does not have.

    As of the last refresh; each comes with the nearest names of the scope, and those of these that have no tools now.
    """
    return [
        *_server_warnings(servers or (), allowed, ledger),
        *_shortened(_group_warnings(groups or (), allowed, ledger)),
    ]


def _server_warnings(names: Sequence[str], allowed: Scope, ledger: Ledger) -> list[str]:
    unknown = [name for name in names if not _is_known(name, allowed, ledger)]
    known = [record.server_id for record in ledger.records(allowed)] if unknown else []
    nearest = {name: _nearest(name, known) for name in unknown}
    suggested = set(chain(*nearest.values())).difference(names)
    absent = [record for record in ledger.absent(allowed) if record.server_id in suggested] if suggested else []
    return [
        *_shortened([f"There is no server {_shown(name, near)}." for name, near in nearest.items()]),
        *absences(absent, suggested, all_unreached=False),
    ]


def _group_warnings(names: Sequence[str], allowed: Scope, ledger: Ledger) -> list[str]:
    unknown = [name for name in names if not _has_servers(name, allowed, ledger)]
    records = ledger.records(allowed) if unknown else []
    known = {group for record in records for group in record.groups if _is_allowed(group, allowed)}
    return [f"There is no running server in the group {_shown(name, _nearest(name, known))}." for name in unknown]


def _is_known(name: str, allowed: Scope, ledger: Ledger) -> bool:
    """Return whether the scope has a server of this name, of any status."""
    record = ledger.record(name)
    return bool(record and replace(allowed, status=record.status).admits(record))


def _has_servers(group: str, allowed: Scope, ledger: Ledger) -> bool:
    return _is_allowed(group, allowed) and bool(ledger.revisions(replace(allowed, groups=frozenset({group}))))


def _is_allowed(group: str, allowed: Scope) -> bool:
    return allowed.groups is None or group in allowed.groups


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    return nearest_names(name[:SHOWN_CHARACTERS], sorted(known), SHOWN)


def _shown(name: str, nearest: Sequence[str]) -> str:
    return f"{name[:SHOWN_CHARACTERS]!r} that you may see" + (f"; the nearest: {', '.join(nearest)}" if nearest else "")


def _shortened(warnings: list[str]) -> list[str]:
    rest = len(warnings) - SHOWN
    return [*warnings[:SHOWN], f"Further names without tools: {rest}."] if rest > 0 else warnings
