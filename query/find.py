"""Find the tools a task needs, and say what that saved: the read side's main path."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from query.ledger import Ledger
from query.savings import TokenMetrics, token_metrics
from query.timings import Stopwatch, Timings
from shared.catalog import Encoding, Hit, Scope, ToolDefinition
from shared.embedding import Embedder
from shared.index.contract import ToolIndex

Keyword = Annotated[str, Field(max_length=200)]


class FindRequest(BaseModel):
    """What a caller looks for. Description and keywords make one query; one of them must say something."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tool_description: Annotated[str, Field(max_length=4_000)]
    """What the tool should do."""
    tool_keywords: Keyword | Annotated[list[Keyword], Field(max_length=50)] | None = None
    """Words likely in its name or parameters."""
    limit: Annotated[int, Field(ge=1, le=50)] = 8
    """At most this many tools."""

    @model_validator(mode="after")
    def _says_something(self) -> FindRequest:
        if not self.query:
            raise ValueError("tool_description: say in a few words what the tool should do")
        return self

    @property
    def query(self) -> str:
        """Return description and keywords as one text, without space around it."""
        keywords = [self.tool_keywords] if isinstance(self.tool_keywords, str) else self.tool_keywords or []
        return " ".join([self.tool_description, *keywords]).strip()


class FoundTool(BaseModel):
    """A tool of the answer; server and name together identify it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    server: str
    name: str
    score: float
    """Cosine similarity to the query; higher is closer."""
    token_count: int | None = None
    """Tokens of the definition; absent: they could not be counted."""
    stale_since: datetime | None = None
    """Present: the server's tools could not be listed since then, so this one may have changed."""
    definition: dict[str, Any]
    """The tool as its server declares it."""


class FindAnswer(BaseModel):
    """The closest tools first, what they saved, and what the caller should know about them."""

    model_config = ConfigDict(frozen=True)

    tools: list[FoundTool]
    token_metrics: TokenMetrics
    warnings: list[str]
    timings: Timings = Field(exclude=True)

    def as_object(self) -> dict[str, Any]:
        """Return the answer as it is sent: without the timings, and without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)


def find_tool(
    request: FindRequest, *, scope: Scope, index: ToolIndex, embedder: Embedder, ledger: Ledger, encoding: Encoding
) -> FindAnswer:
    """Return the tools of the scope closest to the request, and the tokens saved against all of the same scope.

    Raises:
        IndexUnavailable: the index did not answer; nothing was found or counted.
    """
    stopwatch = Stopwatch()
    vector = embedder.query(request.query)
    embed_ms = stopwatch.lap_ms()
    hits = index.search(vector, scope, request.limit)
    search_ms = stopwatch.lap_ms()
    metrics = token_metrics(ledger.baseline(scope, encoding), [hit.tool for hit in hits], encoding)
    sum_ms = stopwatch.lap_ms()
    tools = [_found(hit, ledger.stale_since(hit.tool.server_id), encoding) for hit in hits]
    return FindAnswer(
        tools=tools,
        token_metrics=metrics,
        warnings=_warnings(tools),
        timings=Timings(embed_ms, search_ms, sum_ms),
    )


def _found(hit: Hit, stale_since: float | None, encoding: Encoding) -> FoundTool:
    tool = hit.tool
    return FoundTool(
        server=tool.server_id,
        name=tool.definition.name,
        score=round(hit.score, 4),
        token_count=tool.token_counts.get(encoding),
        stale_since=None if stale_since is None else datetime.fromtimestamp(int(stale_since), UTC),
        definition=_sendable(tool.definition),
    )


def _sendable(definition: ToolDefinition) -> dict[str, Any]:
    """Return the definition with lone surrogates replaced: one of them would make the whole answer unsendable."""
    text = json.dumps(definition.as_object(), ensure_ascii=False)
    cleaned: dict[str, Any] = json.loads(text.encode("utf-8", "replace"))
    return cleaned


def _warnings(tools: Sequence[FoundTool]) -> list[str]:
    if not tools:
        return ["The catalogue holds no tools that you may see."]
    stale = sorted({tool.server for tool in tools if tool.stale_since})
    return [f"Tools of {', '.join(stale)} may be out of date: their servers did not answer."] if stale else []
