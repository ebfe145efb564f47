"""What `find_tool` answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from query.response.summary import summary
from query.response.timings import Timings
from query.savings.savings import TokenMetrics
from shared.catalog import Encoding, IndexedTool, ToolDefinition

NOTHING_VISIBLE = "The catalogue holds no tools that you may see."
BEING_FILLED = "The catalogue is being filled. Ask again in a few seconds."
NOTHING_FITS = "No tool seems to fit. Say what it should do in other words, or ask for one of the nearest by name."
KEYWORDS_ONLY = "Tools were searched by keywords alone: the embedding model cannot be loaded."


DetailLevel = Literal["detailed", "summary", "name"]
"""How a tool is shown: with its definition, in a line, or, where there is no room for more, by its name alone."""


class FoundTool(BaseModel):
    """A tool of the answer; server and name together identify it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    server: str
    name: str
    score: float | None = None
    """How far it stands out, higher is better; comparable within one step. Absent: found by its very name."""
    token_count: int | None = None
    """Tokens of the definition; absent: they could not be counted."""
    stale_since: datetime | None = None
    """Present: the server's tools could not be listed since then, so this one may have changed."""
    summary: str | None = None
    """In the place of the definition: what it must be given, and what it does."""
    definition: dict[str, Any] | None = None
    """The tool as its server declares it."""
    shown_tokens: int = Field(default=0, exclude=True)


class FindResponse(BaseModel):
    """The best tools first, what they saved, and what the caller should know about them."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tools: list[FoundTool]
    no_match: bool | None = None
    """True: no tool fits well enough to be returned."""
    nearest: list[str] | None = None
    """With no_match: the closest tools, as server:tool."""
    keywords_only: bool | None = None
    """True: searched without the embedding model."""
    token_metrics: TokenMetrics
    warnings: list[str]
    next_cursor: str | None = Field(default=None, alias="nextCursor")
    """More tools: ask the same again with it as cursor."""
    baseline_tools: int = Field(default=0, exclude=True)
    saved_by_server: Mapping[str, int] = Field(default_factory=dict[str, int], exclude=True)
    timings: Timings = Field(exclude=True)

    def as_object(self) -> dict[str, Any]:
        """Return the answer as it is sent: without the timings, and without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


def to_found_tool(
    tool: IndexedTool,
    score: float | None,
    stale_since: float | None,
    encoding: Encoding,
    detail: DetailLevel = "detailed",
) -> FoundTool:
    """Return a tool as the answer shows it; `stale_since` is in seconds since the epoch."""
    by_name = detail == "name"
    return FoundTool(
        server=tool.server_id,
        name=tool.definition.name,
        score=None if score is None or by_name else round(score, 4),
        token_count=None if by_name else tool.token_counts.get(encoding),
        stale_since=None if stale_since is None else datetime.fromtimestamp(int(stale_since), UTC),
        summary=_readable(summary(tool.definition)) if detail == "summary" else None,
        definition=sendable(tool.definition) if detail == "detailed" else None,
    )


def warnings(
    tools: Sequence[FoundTool],
    *,
    no_match: bool,
    keywords_only: bool,
    being_listed: int = 0,
    being_filled: bool = False,
    truncation: str = "",
    budget_warnings: Sequence[str] = (),
) -> list[str]:
    """Return what the caller should know, in sentences; `being_listed` servers are still to come.

    `being_filled` says that the index is new, or was lost, and that workers have not yet said what is to come.

    `bounded` is a sentence on how the answer was kept within its budget, `spent` are those on the caller's.
    """
    stale = sorted({tool.server for tool in tools if tool.stale_since})
    conditions = {
        KEYWORDS_ONLY: keywords_only,
        NOTHING_FITS: no_match,
        BEING_FILLED: being_filled and not being_listed,
        NOTHING_VISIBLE: not (tools or no_match or being_listed or being_filled or budget_warnings),
        f"Servers still being listed: {being_listed}. Ask again in a few seconds.": bool(being_listed),
        f"Tools of {', '.join(stale)} may be out of date: their servers did not answer.": bool(stale),
        truncation: bool(truncation),
    }
    return [*(sentence for sentence, applies in conditions.items() if applies), *budget_warnings]


def sendable(definition: ToolDefinition) -> dict[str, Any]:
    """Return the definition with lone surrogates replaced: one of them would make the whole answer unsendable."""
    text = json.dumps(definition.as_object(), ensure_ascii=False)
    cleaned: dict[str, Any] = json.loads(_readable(text))
    return cleaned


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
