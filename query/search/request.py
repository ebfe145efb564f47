"""The request of `find_tool`."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from query.answers.budget import CursorText, MaxTokens, ToolRequest
from shared.catalog import Encoding, Scope
from shared.settings import ResponseMode

Description = Annotated[str, Field(max_length=4_000)]
KeywordText = Annotated[str, Field(max_length=200)]
ToolName = Annotated[str, Field(max_length=300)]


def _as_list(names: object) -> object:
    return [names] if isinstance(names, str) else names


ToolNames = Annotated[list[ToolName], Field(max_length=200), BeforeValidator(_as_list)]
"""At most 200 names; a text is one name."""


class FindRequest(ToolRequest):
    """The search, its filters and its detail level. At least one description or keyword is not blank."""

    tool_description: Description | Annotated[list[Description], Field(max_length=20)]
    """What the tool should do; a list of steps finds tools for each."""
    tool_keywords: KeywordText | Annotated[list[KeywordText], Field(max_length=50)] | None = None
    """Words likely in its name or parameters."""
    limit: Annotated[int, Field(ge=1, le=50)] = 8
    """At most this many tools."""
    servers: ToolNames | None = None
    """Only these servers."""
    groups: ToolNames | None = None
    """Only tools of these groups."""
    read_only: bool = False
    """Only tools declared to change nothing."""
    exclude: ToolNames | None = None
    """Not these tools, named as in an answer."""
    detail: ResponseMode | None = None
    """auto: detailed if that fits; full: every field."""
    encoding: Encoding | None = None
    """To count tokens in."""
    max_tokens: MaxTokens | None = None
    """For a shorter answer."""
    cursor: CursorText | None = None
    """nextCursor of the answer before."""

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
        return Scope(
            groups=intersection(allowed.groups, self.groups),
            servers=intersection(allowed.servers, self.servers),
            status=allowed.status,
            read_only=allowed.read_only or self.read_only,
            exclude=allowed.exclude | frozenset(self.exclude or ()),
            within=allowed.within,
        )


def intersection(allowed: frozenset[str] | None, requested: list[str] | None) -> frozenset[str] | None:
    """Return the names that are both allowed and requested; None: no restriction."""
    if requested is None:
        return allowed
    return frozenset(requested) if allowed is None else allowed.intersection(requested)
