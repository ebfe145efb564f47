"""How answers show a tool: at a level of detail, as a line, by its servers, and with its cost to a context."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from query.replicas import Serving, first_server
from shared.catalog import Encoding, IndexedTool, ToolDefinition
from shared.quoting import encodable

SERVERS_SHOWN = 3
# Digits after the point; a score orders the tools of one answer.
SCORE_DIGITS = 2
# A server may declare anything; these limits keep a summary short.
MAX_PARAMETERS = 12
MAX_NAME_CHARACTERS = 60
MAX_SENTENCE_CHARACTERS = 200
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|(?<=[\u3002\uff01\uff1f])|\n\s*\n")
# The tools that list other tools have the field names of their specification, in camel case.
CAMEL_CASE = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)
# Shares are rounded to a ten-thousandth, so the shares of a whole sum to 1 within half of it for each share.
DIGITS = 4

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


def to_found_tool(
    tool: IndexedTool,
    serving: Serving,
    score: float | None,
    encoding: Encoding,
    detail: DetailLevel = "detailed",
) -> FoundTool:
    """Return a tool at this detail level."""
    if detail == "name":  # as short as possible: a warning names the stale servers
        return FoundTool(name=serving.name, served_by=served_by(serving.servers))
    found = FoundTool(
        name=serving.name,
        served_by=served_by(serving.servers),
        also_on=first_servers(serving.also_on) if serving.also_on else None,
        versions=serving.versions if serving.versions > 1 else None,
        stale_since=None if serving.stale_since is None else datetime.fromtimestamp(int(serving.stale_since), UTC),
        changed_since=date.fromisoformat(tool.changed_since) if tool.changed_since else None,
    )
    shown = shown_definition(tool.definition, detail)
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
    """Return `name(required: type, …): First sentence.`; the dots stand for parameters that may be left out."""
    sentence = first_sentence(definition.description)
    return f"{definition.name}({_parameters(definition)})" + (f": {sentence}" if sentence else "")


def first_sentence(text: str) -> str:
    """Return the first sentence, on one line, cut where it is long."""
    # a longer text is cut anyway
    first = _SENTENCE_END.split(text[: 10 * MAX_SENTENCE_CHARACTERS].strip(), maxsplit=1)[0]
    return _cut(" ".join(first.split()), MAX_SENTENCE_CHARACTERS)


def _parameters(definition: ToolDefinition) -> str:
    schema = _object(definition.as_object().get("inputSchema"))
    properties, required = _object(schema.get("properties")), schema.get("required")
    names = (
        [name for name in cast("list[object]", required) if isinstance(name, str)] if isinstance(required, list) else []
    )
    named = [
        f"{_cut(name, MAX_NAME_CHARACTERS)}: {type_name(properties.get(name))}"
        for name in islice(names, MAX_PARAMETERS)
    ]
    is_all = len(named) == len(names) and properties.keys() <= set(names)
    return ", ".join(named if is_all else [*named, "…"])


def type_name(schema: object) -> str:
    """Return a schema's type as a word, `string[]` for an array of strings, `any` where it is not that simple."""
    declared = _object(schema)
    json_type = declared.get("type")
    if isinstance(json_type, list):
        types = [name for name in cast("list[object]", json_type) if name != "null"]
        json_type = types[0] if len(types) == 1 else None
    if json_type == "array":
        items = _object(declared.get("items")).get("type")
        return f"{_cut(items, 20)}[]" if isinstance(items, str) else "any[]"
    return _cut(json_type, 20) if isinstance(json_type, str) else "any"


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


class ContextInfo(BaseModel):
    """Tokens of the model form, and their share of the answer's scope, 0 to 1; null where a value does not apply."""

    model_config = CAMEL_CASE

    tokens: int | None
    percent_total: float | None = None


class ContextMeta(BaseModel):
    """The tokens of all tools of an answer, over all its pages, and those of all tools that the caller may see."""

    model_config = CAMEL_CASE

    context: ContextInfo
    total_possible_context: ContextInfo


def context_info(tokens: int | None, total: int) -> ContextInfo:
    """Return these tokens and their share of `total`; None are tokens that could not be counted."""
    return ContextInfo(tokens=tokens, percent_total=share(tokens, total))


def context_meta(tokens: int, possible: int) -> ContextMeta:
    """Return both sums; neither is a share."""
    return ContextMeta(context=ContextInfo(tokens=tokens), total_possible_context=ContextInfo(tokens=possible))


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
