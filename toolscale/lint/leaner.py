"""A shorter form of a definition whose input schema accepts the same arguments."""

from __future__ import annotations

import re
from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal, cast

from shared.catalog import ToolDefinition
from shared.text.tokens import json_text, model_text

if TYPE_CHECKING:
    from shared.text.tokens import Counter

Fields = dict[str, Any]
"""A tool as its server declares it."""

Schema = dict[str, Any]
Edit = Callable[[Schema, str], Schema]
"""Returns a schema in place of another one; the second argument is its name in `properties` or `$defs`, or empty."""

DEFINITIONS = ("$defs", "definitions")
_NAMED = frozenset((*DEFINITIONS, "properties", "patternProperties", "dependentSchemas"))
_LISTED = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_SINGLE = frozenset(
    ("items", "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "not",
     "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")
)  # fmt: skip

Kind = Literal["definitions", "titles", "examples", "dialect", "sentences"]
_NAMES: dict[Kind, str] = {
    "definitions": "unused $defs",
    "titles": "titles that repeat names",
    "examples": "examples",
    "dialect": "$schema",
    "sentences": "sentences of three tools",
}

# Tools of a server that share a sentence.
MIN_SHARING = 3
MIN_WORDS = 4
# Enums with more values are reported; none is shortened, since that would reject arguments.
MAX_VALUES = 20

# A new sentence begins with a capital letter or a digit, and not after these abbreviations.
_END = re.compile(r"(?<=[.!?])(?<!\b[eE]\.g\.)(?<!\b[iI]\.e\.)(?<!\betc\.)\s+(?=[A-Z0-9])")
# Libraries title the schema of all arguments with the name of the tool and one of these.
_SUFFIX = re.compile(r"(?:arguments|args|inputs?|parameters|params|schema|request|model)*")
# `Args:` and `path: The file` begin the documentation of arguments, which is not boilerplate.
_LABEL = re.compile(r"^[ \t]*(?:[-*][ \t]*)?[`'\"]?([\w-]+)[`'\"]?[ \t]*(?:\([^)\n]*\))?:", re.MULTILINE)
_LOCAL = re.compile(r"#(?:/(?:\$defs|definitions)/(?P<name>[A-Za-z0-9._-]+))?")
_ADDRESSES = frozenset(
    ("$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary")
)
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "example", "$comment", "deprecated"))
# They mean the same in the dialects of _DIALECTS, of which the second holds for a schema that names none.
_COMMON = _ANNOTATIONS | {
    *DEFINITIONS, "$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "properties", "required", "type",
    "uniqueItems",
}  # fmt: skip
_DIALECTS = frozenset(("http://json-schema.org/draft-07/schema", "https://json-schema.org/draft/2020-12/schema"))


@dataclass(frozen=True, slots=True)
class Leaner:
    """A shorter definition, and the tokens of the model form that each kind of removal saves.

    `before` is the count of the original. `enums` are the tokens of its enums with more than MAX_VALUES values.
    `sentences` are the removed sentences, each once.
    """

    definition: ToolDefinition
    before: int
    removed: Mapping[Kind, int]
    enums: int
    sentences: tuple[str, ...] = ()

    @property
    def saved(self) -> int:
        """Return the tokens that the shorter definition saves; never negative."""
        return sum(self.removed.values())


def leaner(definition: ToolDefinition, shared: Collection[str], count: Counter) -> Leaner:
    """Return the shorter form, without the sentences that `shared_sentences` found.

    Removals that save no token are left out.

    Raises:
        CountFailed: tiktoken failed.
    """
    removals: dict[Kind, Callable[[Fields], Fields]] = {
        kind: partial(_with_schema, edits=(edit,)) for kind, edit in _SCHEMA_REMOVALS.items()
    }
    removals["sentences"] = partial(_without_sentences, shared=shared)
    before = left = count(model_text(definition))
    removed: dict[Kind, int] = {}
    shorter = definition
    for kind, remove in removals.items():
        candidate = _rewritten(shorter, remove)
        if (tokens := count(model_text(candidate))) < left:
            removed[kind], left, shorter = left - tokens, tokens, candidate
    enums = before - count(model_text(_rewritten(definition, partial(_with_schema, edits=(_without_long_enums,)))))
    found = dict.fromkeys(sentence for sentence in _sentences(_prose(definition.as_object())) if sentence in shared)
    return Leaner(shorter, before, removed, enums, tuple(found) if "sentences" in removed else ())


def removals_named(removed: Mapping[Kind, int]) -> str:
    """Return what a shorter form lacks, with the tokens of each kind: `examples (12), $schema (15)`."""
    return ", ".join(f"{_NAMES[kind]} ({tokens:,})" for kind, tokens in removed.items())


def shared_sentences(tools: Iterable[ToolDefinition]) -> frozenset[str]:
    """Return the sentences that the descriptions of at least three of these tools share, before their arguments."""
    tools_with = Counts(sentence for tool in tools for sentence in set(_sentences(_prose(tool.as_object()))))
    return frozenset(
        text for text, tools in tools_with.items() if tools >= MIN_SHARING and len(text.split()) >= MIN_WORDS
    )


def _rewritten(tool: ToolDefinition, edit: Callable[[Fields], Fields]) -> ToolDefinition:
    fields = tool.as_object()
    changed = edit(fields)
    return tool if changed is fields else ToolDefinition.from_wire(json_text(changed))


def _with_schema(tool: Fields, edits: Iterable[Edit]) -> Fields:
    """Return the tool with the edited input schema; a schema with addresses of its own stays as it is."""
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict) or not _is_plain(cast("Schema", schema)):
        return tool
    name = str(tool.get("name"))
    return {**tool, "inputSchema": reduce(lambda left, edit: edit(left, name), edits, cast("Schema", schema))}


def _is_plain(schema: Schema) -> bool:
    """Return whether all references lead to the root or to a definition by its name."""
    keywords = list(keywords_anywhere(schema))
    refs = [value for key, value in keywords if key == "$ref"]
    local = all(isinstance(ref, str) and _LOCAL.fullmatch(ref) for ref in refs)
    return local and not any(key in _ADDRESSES and isinstance(value, str | bool) for key, value in keywords)


def _without_dialect(schema: Schema, _tool: str) -> Schema:
    """Return the schema without `$schema` if its keywords mean the same in the dialect of MCP."""
    if str(schema.get("$schema")).rstrip("#") not in _DIALECTS:
        return schema
    bare = {key: value for key, value in schema.items() if key != "$schema"}
    return bare if all(map(_is_common, schemas_of(bare))) else schema


def _is_common(schema: Schema) -> bool:
    if isinstance(schema.get("items"), list) or not schema.keys() <= _COMMON:
        return False
    return "$ref" not in schema or schema.keys() <= _ANNOTATIONS | {"$ref", *DEFINITIONS}


def _without_titles(schema: Schema, tool: str) -> Schema:
    """Return the schema without titles that repeat the name of a parameter, of a definition or of the tool."""

    def edit(inner: Schema, name: str) -> Schema:
        title = inner.get("title")
        repeats = isinstance(title, str) and _letters(title) == _letters(name)
        return {key: value for key, value in inner.items() if key != "title" or not repeats}

    kept = cast("Schema", edited(schema, edit))
    title = _letters(str(kept.get("title")))
    repeats = title.startswith(_letters(tool)) and _SUFFIX.fullmatch(title, len(_letters(tool)))
    return {key: value for key, value in kept.items() if key != "title" or not repeats}


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold()


def _without_examples(schema: Schema, _tool: str) -> Schema:
    def edit(inner: Schema, _name: str) -> Schema:
        return {key: value for key, value in inner.items() if key not in ("examples", "example")}

    return cast("Schema", edited(schema, edit))


def _without_long_enums(schema: Schema, _tool: str) -> Schema:
    def edit(inner: Schema, _name: str) -> Schema:
        values = inner.get("enum")
        is_long = isinstance(values, list) and len(cast("list[object]", values)) > MAX_VALUES
        return {key: value for key, value in inner.items() if key != "enum" or not is_long}

    return cast("Schema", edited(schema, edit))


def _without_unused(schema: Schema, _tool: str) -> Schema:
    """Return the schema without definitions that no reference reaches."""
    used = _reached(schema)
    kept = {key: _named(value, used) if key in DEFINITIONS else value for key, value in schema.items()}
    return {key: value for key, value in kept.items() if key not in DEFINITIONS or value}


_SCHEMA_REMOVALS: Mapping[Kind, Edit] = {
    "definitions": _without_unused,
    "titles": _without_titles,
    "examples": _without_examples,
    "dialect": _without_dialect,
}


def _named(definitions: object, names: Collection[str]) -> object:
    if not isinstance(definitions, dict):
        return definitions
    return {name: schema for name, schema in cast("Schema", definitions).items() if name in names}


def _reached(schema: Schema) -> set[str]:
    """Return the names of the definitions that a reference reaches, from outside or through another definition."""
    definitions = [cast("Schema", schema[key]) for key in DEFINITIONS if isinstance(schema.get(key), dict)]
    waiting: list[object] = [{key: value for key, value in schema.items() if key not in DEFINITIONS}]
    used: set[str] = set()
    while waiting:
        named = {_name_in(value) for key, value in keywords_anywhere(waiting.pop()) if key == "$ref"} - used - {None}
        used |= cast("set[str]", named)
        waiting += [inner[name] for inner in definitions for name in named if name in inner]
    return used


def _name_in(ref: object) -> str | None:
    found = _LOCAL.fullmatch(str(ref))
    return found["name"] if found else None


def _without_sentences(tool: Fields, shared: Collection[str]) -> Fields:
    """Return the tool without these sentences; a description of only such sentences stays."""
    prose = _prose(tool)
    left = "\n".join(line for line in (_without(line, shared) for line in prose.split("\n")) if line is not None)
    if left == prose or not left.strip():
        return tool
    return {**tool, "description": (left + str(tool["description"])[len(prose) :]).strip()}


def _without(line: str, shared: Collection[str]) -> str | None:
    """Return the line without these sentences; None if nothing is left of it."""
    parts = _END.split(line)
    kept = [part for part in parts if part.strip() not in shared]
    return line if len(kept) == len(parts) else " ".join(kept) or None


def labels(description: str) -> set[str]:
    """Return the words that begin a line and end with a colon, such as the names below `Args:`."""
    return {found[1] for found in _LABEL.finditer(description)}


def _prose(tool: Fields) -> str:
    """Return the description up to its first label."""
    description = tool.get("description")
    return _LABEL.split(description, maxsplit=1)[0] if isinstance(description, str) else ""


def _sentences(prose: str) -> list[str]:
    parts = (part.strip() for line in prose.splitlines() for part in _END.split(line))
    return [part for part in parts if part.endswith((".", "!", "?"))]


def edited(schema: Any, edit: Edit, name: str = "") -> Any:
    """Return the schema after `edit` of it and of every schema within; data such as `enum` and `default` stay."""
    if not isinstance(schema, dict):
        return schema
    inner = {key: _within(key, value, edit) for key, value in cast("Schema", schema).items()}
    return edit(inner, name)


def _within(key: str, value: Any, edit: Edit) -> Any:
    if key in _NAMED and isinstance(value, dict):
        return {name: edited(schema, edit, name) for name, schema in cast("Schema", value).items()}
    if key in _LISTED and isinstance(value, list):
        return [edited(schema, edit) for schema in cast("list[object]", value)]
    return edited(value, edit) if key in _SINGLE else value


def schemas_of(schema: Any) -> list[Schema]:
    """Return the schema and every schema within."""
    found: list[Schema] = []

    def keep(each: Schema, _name: str) -> Schema:
        found.append(each)
        return each

    edited(schema, keep)
    return found


def keywords_anywhere(value: object) -> Iterator[tuple[str, object]]:
    """Yield every key of every object with its value, in schemas and in data."""
    if isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            yield key, inner
            yield from keywords_anywhere(inner)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from keywords_anywhere(inner)
