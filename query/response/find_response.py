"""The response of `find_tool`."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from query.replicas.serving import Serving, first_server
from query.response.summary import summary
from query.savings.savings import Baseline, TokenMetrics, token_metrics
from shared.catalog import Encoding, IndexedTool, ToolDefinition
from shared.quoting import encodable
from shared.text.leaner import leaner_schema

NOTHING_VISIBLE = "The catalogue holds no tools that you may see."
NOTHING_PASSES = "No tool that you may see passes the filters of this search."
NOTHING_HAS_WORDS = "No tool has a word of this search. Say what it should do in other words."
NOTHING_FURTHER = "This search has no further tools."
FURTHER_LOST = "There are more, but a cursor to them cannot be stored at the moment."
BEING_FILLED = "The catalogue is being filled. Ask again in a few seconds."
NOTHING_FITS = "No tool seems to fit. Say what it should do in other words, or ask for one of the nearest by name."
KEYWORDS_ONLY = "Tools were searched by keywords alone: the embedding model cannot be loaded."

SERVERS_SHOWN = 3
# Digits after the point; a score orders the tools of one answer.
SCORE_DIGITS = 2

DetailLevel = Literal["full", "detailed", "summary", "name"]
"""How a tool is shown: with its whole definition, with what a model needs of it, as one line, or by name only."""


class ServedBy(BaseModel):
    """The number of servers that offer the same tool, and the first of them."""

    model_config = ConfigDict(frozen=True)

    count: int
    servers: list[str]


class FoundTool(BaseModel):
    """A tool of the answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    """For call_tool: `server:tool`, or without a server where several serve it."""
    served_by: ServedBy | None = None
    """Present: several servers offer it."""
    also_on: ServedBy | None = None
    """Other servers with an equal tool over their own data: call it there as server:tool."""
    versions: int | None = None
    """Present: so many definitions of it exist, on servers of the same kind."""
    score: float | None = None
    """With full: how far it stands out, comparable within one step."""
    token_count: int | None = None
    """Not with detailed: tokens of the whole definition, if they could be counted."""
    stale_since: datetime | None = None
    """Present: the server's tools could not be listed since then, so this one may have changed."""
    changed_since: date | None = None
    """Present: the server changed the tool then, and no operator has accepted it yet."""
    summary: str | None = None
    """What it must be given, and what it does."""
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(default=None, alias="inputSchema")
    definition: dict[str, Any] | None = None
    """With full: every field."""

    @property
    def first_server(self) -> tuple[str, str]:
        """Return the first server that offers the tool, and the tool's name there."""
        return first_server(self.name, self.served_by.servers if self.served_by else ())


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

    def as_object(self) -> dict[str, Any]:
        """Return the JSON object to send, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


def to_found_tool(
    tool: IndexedTool,
    serving: Serving,
    score: float | None,
    stale_since: float | None,
    encoding: Encoding,
    detail: DetailLevel = "detailed",
    *,
    is_leaner: bool = False,
) -> FoundTool:
    """Return a tool at this detail level; `stale_since` is in seconds since the epoch.

    `is_leaner` shortens the input schema of the detail `detailed`.
    """
    if detail == "name":  # as short as possible: a warning names the stale servers
        return FoundTool(name=serving.name, served_by=served_by(serving.servers))
    found = FoundTool(
        name=serving.name,
        served_by=served_by(serving.servers),
        also_on=first_servers(serving.also_on) if serving.also_on else None,
        versions=serving.versions if serving.versions > 1 else None,
        stale_since=None if stale_since is None else datetime.fromtimestamp(int(stale_since), UTC),
        changed_since=date.fromisoformat(tool.changed_since) if tool.changed_since else None,
    )
    shown = shown_definition(tool.definition, detail, is_leaner=is_leaner)
    if detail == "detailed" and shown:
        fields = {"description": shown.get("description"), "input_schema": shown.get("inputSchema")}
        return found.model_copy(update=fields)
    return found.model_copy(
        update={
            "score": None if score is None or detail != "full" else round(score, SCORE_DIGITS),
            "token_count": tool.token_counts.get(encoding),
            "summary": encodable(summary(tool.definition)) if detail == "summary" else None,
            "definition": shown,
        }
    )


def served_by(servers: Sequence[str]) -> ServedBy | None:
    """Return the number of these servers and the first of them; None for one server."""
    return first_servers(servers) if len(servers) > 1 else None


def first_servers(servers: Sequence[str]) -> ServedBy:
    """Return the number of these servers and the first of them."""
    return ServedBy(count=len(servers), servers=list(servers[:SERVERS_SHOWN]))


def empty_response(
    baseline: Baseline,
    encoding: Encoding,
    *,
    nothing: str | None,
    nearest: Sequence[str],
    keywords_only: bool,
    being_listed: tuple[int, int],
    being_filled: bool,
    budget_warnings: Sequence[str],
    filter_warnings: Sequence[str] = (),
) -> FindResponse:
    """Return the response of a search before any tool is added, without `budget_warnings`.

    `nothing` is the reason why a search found nothing, not even a tool that does not fit; `filter_warnings` are about
    its filters.
    `nearest` are the closest tools of a search without a match. `being_listed` counts the announced servers that
    are not listed yet, and all. `being_filled` means that the index is new or was lost, and has a part of the tools.
    """
    no_match, (awaited, servers) = bool(nearest), being_listed
    conditions = {
        KEYWORDS_ONLY: keywords_only,
        NOTHING_FITS: no_match,
        BEING_FILLED: being_filled and not awaited,
        nothing or "": nothing is not None and not (no_match or awaited or being_filled or budget_warnings),
        f"Servers still being listed: {awaited} of {servers}. Ask again in a few seconds.": bool(awaited),
    }
    metrics = token_metrics(baseline, [], encoding)
    return FindResponse(
        tools=[],
        no_match=no_match or None,
        nearest=list(nearest) or None,
        keywords_only=keywords_only or None,
        token_metrics=metrics.model_copy(update={"uncounted": []}) if no_match else metrics,
        warnings=[*filter_warnings, *(sentence for sentence, applies in conditions.items() if applies)],
    )


def stale_warnings(servers: Collection[str]) -> list[str]:
    """Return a warning that the tools of these servers may be out of date, if there are any."""
    stale = ", ".join(sorted(servers))
    return [f"Tools of {stale} may be out of date: their servers did not answer."] if servers else []


def shown_definition(
    definition: ToolDefinition, detail: DetailLevel, *, is_leaner: bool = False
) -> dict[str, Any] | None:
    """Return the fields of the definition that this detail level shows; None where it shows none.

    `is_leaner` shortens the input schema of the detail `detailed`.
    Lone surrogates are replaced: JSON with one of them cannot be sent.
    """
    if detail not in ("full", "detailed"):
        return None
    shown = definition.as_object() if detail == "full" else definition.for_model()
    if is_leaner and detail == "detailed":
        shown = leaner_schema(shown)
    if definition.wire.isascii() and "\\u" not in definition.wire:
        return shown
    cleaned: dict[str, Any] = json.loads(encodable(json.dumps(shown, ensure_ascii=False)))
    return cleaned
