"""How answers show a tool, and the answer of `find_tool` within its budget.

A tool is shown at a level of detail, as a line, by its servers, and with its cost to a context. An answer has
definitions, else summaries, else names, and as many of them as fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache, cached_property, lru_cache
from itertools import accumulate, takewhile
from operator import not_
from typing import TYPE_CHECKING, Any, Literal, cast

import structlog
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from query.absent import staleness
from query.answers.budget import MAX_TOKEN_CHARACTERS, Budget, most_that_fit
from query.answers.signature import signature
from query.records import Baseline, TokenMetrics, token_metrics
from query.replicas import Serving, first_server
from shared.catalog import SMALL_DEFINITION, Encoding, IndexedTool, ToolDefinition, object_of
from shared.errors import BudgetTooSmall
from shared.quoting import encodable
from shared.text.tokens import Counter, json_text

if TYPE_CHECKING:
    from query.search.search import Hit
    from shared.catalog import Form
    from shared.settings import ResponseMode

SERVERS_SHOWN = 3
# Digits after the point; a score orders the tools of one answer.
SCORE_DIGITS = 2
# A server may declare anything; this limit keeps a summary short.
MAX_SENTENCE_CHARACTERS = 200
# Tools as answers show them, which are made once: some 10 KB each.
REMEMBERED_TOOLS = 1024
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])|\n\s*\n")
# The tools that list other tools have the field names of their specification, in camel case.
CAMEL_CASE = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)
# Shares are rounded to a ten-thousandth, so the shares of a whole sum to 1 within half of it for each share.
DIGITS = 4

DetailLevel = Literal["full", "detailed", "summary", "name"]
"""How a tool is shown: with its whole definition, with what a model needs of it, as one line, or by name only."""

# The levels that a mode tries, in order. With "auto", definitions are shown only if all of them fit.
_LEVELS: Mapping[ResponseMode, tuple[DetailLevel, ...]] = {
    "auto": ("detailed", "summary", "name"),
    "detailed": ("detailed", "summary", "name"),
    "full": ("full", "summary", "name"),
    "summary": ("summary", "name"),
}

TOOL = "find_tool"
# A guess at the tokens of an answer without tools; with a good guess, an answer is counted once.
FEW_TOKENS = 300

_log = structlog.get_logger()


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
    """Its signature in Python, and what it does."""
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(default=None, alias="inputSchema")
    definition: dict[str, Any] | None = None
    """With full: every field."""

    @property
    def first_server(self) -> tuple[str, str]:
        """Return the first server that offers the tool, and the tool's name there."""
        return first_server(self.name, self.served_by.servers if self.served_by else ())

    @cached_property
    def shown(self) -> dict[str, Any]:
        """The JSON object to send, without fields that are None; all answers share it."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)

    @cached_property
    def text(self) -> str:
        """The JSON text to send."""
        return json_text(self.shown)


def to_found_tool(
    tool: IndexedTool,
    serving: Serving,
    score: float | None,
    encoding: Encoding,
    detail: DetailLevel = "detailed",
) -> FoundTool:
    """Return a tool at this detail level."""
    found_tool = _remembered if len(tool.definition.wire) <= SMALL_DEFINITION else _found_tool
    shown_score = None if score is None or detail != "full" else round(score, SCORE_DIGITS)
    tokens = tool.token_counts.get(encoding) if detail in ("full", "summary") else None
    return found_tool(tool.definition, serving, tool.changed_since, shown_score, tokens, detail)


def _found_tool(
    definition: ToolDefinition,
    serving: Serving,
    changed_since: str | None,
    score: float | None,
    tokens: int | None,
    detail: DetailLevel,
) -> FoundTool:
    if detail == "name":  # as short as possible: a warning names the stale servers
        return FoundTool(name=serving.name, served_by=served_by(serving.servers))
    found = FoundTool(
        name=serving.name,
        served_by=served_by(serving.servers),
        also_on=first_servers(serving.also_on) if serving.also_on else None,
        versions=serving.versions if serving.versions > 1 else None,
        stale_since=None if serving.stale_since is None else datetime.fromtimestamp(int(serving.stale_since), UTC),
        changed_since=date.fromisoformat(changed_since) if changed_since else None,
    )
    shown = shown_definition(definition, detail)
    if detail == "detailed" and shown:
        fields = {"description": shown.get("description"), "input_schema": shown.get("inputSchema")}
        return found.model_copy(update=fields)
    return found.model_copy(
        update={
            "score": score,
            "token_count": tokens,
            "summary": encodable(summary(definition)) if detail == "summary" else None,
            "definition": shown,
        }
    )


_remembered = lru_cache(REMEMBERED_TOOLS)(_found_tool)


def served_by(servers: Sequence[str]) -> ServedBy | None:
    """Return the number of these servers and the first of them; None for one server."""
    return first_servers(servers) if len(servers) > 1 else None


def first_servers(servers: Sequence[str]) -> ServedBy:
    """Return the number of these servers and the first of them."""
    return ServedBy(count=len(servers), servers=list(servers[:SERVERS_SHOWN]))


def shown_definition(definition: ToolDefinition, detail: DetailLevel) -> dict[str, Any] | None:
    """Return the fields of the definition that this detail level shows; None where it shows none.

    Lone surrogates are replaced: JSON with one of them cannot be sent.
    """
    if detail not in ("full", "detailed"):
        return None
    shown = definition.as_object() if detail == "full" else definition.for_model()
    if definition.wire.isascii() and "\\u" not in definition.wire:
        return shown
    cleaned: dict[str, Any] = json.loads(encodable(json.dumps(shown, ensure_ascii=False)))
    return cleaned


def summary(definition: ToolDefinition) -> str:
    """Return `name(required: type, optional: type = ...) -> type: First sentence.`, in types of Python."""
    sentence = first_sentence(definition.description)
    return signature(definition) + (f": {sentence}" if sentence else "")


def nearest_line(tool: IndexedTool, serving: Serving) -> str:
    """Return the name of a tool, and its first sentence."""
    return encodable(": ".join(filter(None, (serving.name, first_sentence(tool.definition.description)))))


def first_sentence(text: str) -> str:
    """Return the first sentence, on one line, cut where it is long."""
    # a longer text is cut anyway
    first = _SENTENCE_END.split(text[: 10 * MAX_SENTENCE_CHARACTERS].strip(), maxsplit=1)[0]
    return _cut(" ".join(first.split()), MAX_SENTENCE_CHARACTERS)


def type_name(schema: object) -> str:
    """Return a schema's type as a word, `string[]` for an array of strings, `any` where it is not that simple."""
    declared = object_of(schema)
    json_type = declared.get("type")
    if isinstance(json_type, list):
        types = [name for name in cast("list[object]", json_type) if name != "null"]
        json_type = types[0] if len(types) == 1 else None
    if json_type == "array":
        items = object_of(declared.get("items")).get("type")
        return f"{_cut(items, 20)}[]" if isinstance(items, str) else "any[]"
    return _cut(json_type, 20) if isinstance(json_type, str) else "any"


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


class ContextInfo(BaseModel):
    """Tokens of the model form, and their share of the answer's scope, 0 to 1; null where a value does not apply."""

    model_config = CAMEL_CASE

    tokens: int | None
    percent_total: float | None


class ContextSum(BaseModel):
    """Tokens of the model form of a whole, which has no share."""

    model_config = CAMEL_CASE

    tokens: int


class ContextMeta(BaseModel):
    """The tokens of all tools of an answer, over all its pages, and those of all tools that the caller may see."""

    model_config = CAMEL_CASE

    context: ContextSum
    total_possible_context: ContextSum


def context_info(tokens: int | None, total: int) -> ContextInfo:
    """Return these tokens and their share of `total`; None are tokens that could not be counted."""
    return ContextInfo(tokens=tokens, percent_total=share(tokens, total))


def context_meta(tokens: int, possible: int) -> ContextMeta:
    """Return both sums."""
    return ContextMeta(context=ContextSum(tokens=tokens), total_possible_context=ContextSum(tokens=possible))


def share(tokens: int | None, total: int) -> float | None:
    """Return the share of these tokens in `total`, rounded; None without a count, or of nothing."""
    return None if tokens is None or total == 0 else round(tokens / total, DIGITS)


def is_none(value: object) -> bool:
    """Return whether a field is omitted from the JSON."""
    return value is None


class ToolInfo(BaseModel):
    """A tool and the cost of its definition; `namespaced_name` is its name for `call_tool`."""

    model_config = CAMEL_CASE

    namespaced_name: str
    server_name: str
    name: str
    description: str
    context: ContextInfo
    definition: dict[str, Any] | None = Field(default=None, exclude_if=is_none)


def tool_info(
    tool: IndexedTool,
    encoding: Encoding,
    total: int,
    definition: dict[str, Any] | None = None,
    name: str | None = None,
    replicas: int = 1,
) -> ToolInfo:
    """Return a tool, its share of `total`, and its definition as it is to be shown.

    `name` is the name for `call_tool`, by default `server:tool`. The cost is that of all its replicas.
    """
    tokens = tool.model_counts.get(encoding)
    return ToolInfo(
        namespaced_name=name or tool.qualified_name,
        server_name=tool.server_id,
        name=tool.definition.name,
        description=encodable(first_sentence(tool.definition.description)),
        context=context_info(None if tokens is None else replicas * tokens, total),
        definition=definition,
    )


class FindResponse(BaseModel):
    """The best tools first, what they saved, and what the caller should know about them."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    tools: list[FoundTool]
    no_match: bool | None = None
    """True: no tool fits well enough to be returned."""
    nearest: list[str] | None = None
    """With no_match: the closest tools, a line each, as `server:tool: what it does`."""
    keywords_only: bool | None = None
    """True: searched without the embedding model."""
    token_metrics: TokenMetrics
    warnings: list[str] = Field(default=[], exclude_if=not_)
    next_cursor: str | None = Field(default=None, alias="nextCursor")
    """More tools: ask the same again with it as cursor."""

    def as_object(self) -> dict[str, Any]:
        """Return the JSON object to send, without fields that are None."""
        rest = self.model_dump(mode="json", exclude={"tools"}, exclude_none=True, by_alias=True)
        return {"tools": [tool.shown for tool in self.tools], **rest}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search, independent of the detail level.

    `serving` has the servers of each hit by its qualified name. `is_all`: there are no tools behind the hits.
    `nearest` are lines of tools that do not fit, where none does. `warnings` concern the search, and `budget_warnings`,
    which come last in a response, the caller's own budget. `cursor` leads to the tools behind those of the response;
    None: it could not be stored.
    """

    hits: Sequence[Hit]
    serving: Mapping[str, Serving]
    is_all: bool
    baseline: Baseline
    encoding: Encoding
    cursor: str | None
    nearest: Sequence[str] = ()
    keywords_only: bool = False
    warnings: Sequence[str] = ()
    budget_warnings: Sequence[str] = ()


def within_budget(result: SearchResult, mode: ResponseMode, budget: Budget) -> FindResponse:
    """Return the response at the mode's detail level, or shorter where the budget requires it.

    Raises:
        BudgetTooSmall: not even one tool's name fits.
    """
    if not result.hits:
        return _without_tools(result, budget)
    for detail in _LEVELS[mode]:
        min_tools = len(result.hits) if (mode, detail) == ("auto", "detailed") else 1
        limit = _affordable(result, detail, budget)
        if limit < min_tools:
            continue
        level = _Level.of(result, budget, detail, limit, is_requested=detail in (mode, "detailed"))
        response = level.most(min_tools)
        if response is not None:
            shown = len(response.tools)
            if level.truncation(shown):
                form = detail if shown == len(result.hits) else "page"
                _log.warning("response_truncated", tool=TOOL, form=form, max_tokens=budget.max_tokens)
            return response
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


@dataclass(frozen=True, slots=True)
class _Level:
    """The first tools of a result at one detail level, each with its tokens as shown."""

    result: SearchResult
    budget: Budget
    detail: DetailLevel
    is_requested: bool
    tools: Sequence[FoundTool]
    shown_tokens: Sequence[int]

    @classmethod
    def of(cls, result: SearchResult, budget: Budget, detail: DetailLevel, limit: int, *, is_requested: bool) -> _Level:
        """Return the first `limit` hits at this detail level."""
        tools: list[FoundTool] = []
        shown_tokens: list[int] = []
        for hit in result.hits[:limit]:
            serving, encoding = result.serving[hit.tool.qualified_name], result.encoding
            tool = to_found_tool(hit.tool, serving, hit.score, encoding, detail)
            tools.append(tool)
            if detail in ("full", "detailed"):
                shown_tokens.append(hit.tool.token_counts.get(encoding, 0))
            else:
                shown_tokens.append(budget.count(tool.name if detail == "name" else tool.summary or ""))
        return cls(result, budget, detail, is_requested, tools, shown_tokens)

    def most(self, min_tools: int) -> FindResponse | None:
        """Return the response with the most tools that fits; None where fewer than `min_tools` fit."""
        response = cache(self.response)  # the one that fits was counted to find that it does
        count = most_that_fit(len(self.tools), lambda count: _fits(response(count), self.budget))
        return response(count) if count >= min_tools else None

    def response(self, count: int) -> FindResponse:
        """Return the response with the first `count` tools."""
        result, tools = self.result, list(self.tools[:count])
        shown = [hit.tool for hit in result.hits[:count]]
        metrics = token_metrics(result.baseline, shown, result.encoding, sum(self.shown_tokens[:count]))
        is_all = result.is_all and count == len(result.hits)
        response = FindResponse(
            tools=tools,
            keywords_only=result.keywords_only or None,
            token_metrics=metrics.model_copy(update={"uncounted": []}) if self.detail == "name" else metrics,
            warnings=[*result.warnings, *self._stale(shown), *self.truncation(count), *result.budget_warnings],
            nextCursor=None if is_all else result.cursor,
        )
        return counted(response, self.budget.count)

    def _stale(self, shown: Sequence[IndexedTool]) -> list[str]:
        serving = self.result.serving
        return staleness(tool.server_id for tool in shown if serving[tool.qualified_name].stale_since is not None)

    def truncation(self, count: int) -> list[str]:
        """Return a warning if a response with `count` tools is shorter than the caller requested."""
        kept_short, hits = f"to stay within {self.budget.max_tokens} tokens", len(self.result.hits)
        if self.detail == "name":
            return [f"Names only, {kept_short}."]
        if not self.is_requested:
            return [f"Summaries, {kept_short}; describe_tool has the definitions."]
        return [f"Only {count} of {hits} tools, {kept_short}."] if count < hits else []


def _without_tools(result: SearchResult, budget: Budget) -> FindResponse:
    """Return the response without tools, with as many of the nearest tools as fit."""
    metrics = token_metrics(result.baseline, [], result.encoding)
    # tools that the budget excludes may be followed by some that it admits
    has_more = bool(result.budget_warnings) and not result.is_all
    next_cursor = result.cursor if has_more else None

    @cache
    def response(count: int) -> FindResponse:
        has_nearest = bool(result.nearest)
        empty = FindResponse(
            tools=[],
            no_match=has_nearest or None,
            nearest=list(result.nearest[:count]) if has_nearest else None,
            keywords_only=result.keywords_only or None,
            token_metrics=metrics.model_copy(update={"uncounted": []}) if has_nearest else metrics,
            warnings=[*result.warnings, *result.budget_warnings],
            nextCursor=next_cursor,
        )
        return counted(empty, budget.count)

    return response(most_that_fit(len(result.nearest), lambda count: _fits(response(count), budget)))


def _affordable(result: SearchResult, detail: DetailLevel, budget: Budget) -> int:
    """Return how many hits may fit; definitions by their token counts, so that no huge one is parsed."""
    if detail not in ("full", "detailed"):
        return len(result.hits)
    form: Form = "wire" if detail == "full" else "model"
    counts = (
        hit.tool.counts(form).get(result.encoding, len(hit.tool.definition.wire) // MAX_TOKEN_CHARACTERS)
        for hit in result.hits
    )
    return sum(1 for _ in takewhile(lambda tokens: tokens <= budget.max_tokens, accumulate(counts)))


def _fits(response: FindResponse, budget: Budget) -> bool:
    return response.token_metrics.answer_tokens <= budget.max_tokens


def counted(response: FindResponse, count: Counter) -> FindResponse:
    """Return the response with the tokens of its JSON text, the digits of this number and of the net included.

    The tokens of a number depend on its sign and on how many digits it has, so one count is mostly enough.
    If no number equals the tokens of the text that contains it, the response contains the larger of the two.
    """
    answer, metrics = response.as_object(), response.token_metrics

    def text(tokens: int) -> str:
        answer["token_metrics"] |= {"answer_tokens": tokens, "net_tokens_saved": metrics.net_of(tokens)}
        return answer_text(response.tools, answer)

    def shape(tokens: int) -> tuple[int, bool, int]:
        net = metrics.net_of(tokens)
        return len(str(tokens)), net < 0, len(str(net))

    # an answer has a few more tokens than its tools, and some hundred without any
    tried = [max(metrics.returned_tokens, FEW_TOKENS)]
    while (tokens := count(text(tried[-1]))) not in tried and shape(tokens) != shape(tried[-1]):
        tried.append(tokens)
    tokens = tokens if tokens not in tried else max(tried[tried.index(tokens) :])
    return response.model_copy(update={"token_metrics": metrics.with_answer_tokens(tokens)})


def answer_text(tools: Sequence[FoundTool], answer: Mapping[str, Any]) -> str:
    """Return the JSON text of an answer with these tools, whose own texts are known."""
    rest = json_text({key: value for key, value in answer.items() if key != "tools"})
    return f'{{"tools":[{",".join(tool.text for tool in tools)}],{rest[1:]}'
