"""All findings on a server's listing, with the tokens of each tool by field.

Texts that a model misses, descriptions that are almost equal, sizes beyond the percentiles of `corpus.json`, which are
those of the demo's tools, and shorter definitions that accept the same arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict

from shared.catalog import Encoding, object_of
from shared.text.bm25 import prose_terms, words
from shared.text.tokens import DESCRIPTION, Counter, Field, counter, parameters_of, tokens_by_field
from toolscale.lint.findings import Finding, Level, RuleId, broken, worst_first
from toolscale.lint.leaner import DEFINITIONS, Leaner, labels, leaner, removals_named, shared_sentences

if TYPE_CHECKING:
    from shared.catalog import Listing, ToolDefinition
    from shared.text.embedding import Embedder

# References lead from one to the next at most so often; a cycle has no end.
_MAX_REFERENCES = 8
# find_tool put 9 of 44 such tools before the right one, against 1.5 % of the others.
SIMILAR = 0.8
CORPUS = Path(__file__).with_name("corpus.json")


@dataclass(frozen=True, slots=True)
class LintReport:
    """The findings on a server, the worst first, the tokens of its tools by field, and their shorter forms."""

    server: str
    tokens: Mapping[str, Mapping[Field, int]]
    findings: tuple[Finding, ...]
    shorter: tuple[Leaner, ...] = ()

    @property
    def total(self) -> int:
        """Return the tokens of all tools."""
        return sum(sum(parts.values()) for parts in self.tokens.values())


def lint(listing: Listing, embedder: Embedder, ignored: Collection[str] = ()) -> LintReport:
    """Return the report on a listing, without findings of the ignored rules.

    Raises:
        CountFailed: a text could not be counted.
        ModelUnavailable: the model cannot be loaded.
    """
    encoding = corpus().encoding
    tokens = {tool.name: tokens_by_field(tool.for_model(), encoding) for tool in listing.tools}
    shorter = shorter_definitions(listing.tools, counter(encoding))
    findings = chain(
        (broken("invalid-tool", tool.name, tool.reason) for tool in listing.rejected),
        (broken("invisible-characters", name, "a model sees marks in their places") for name in listing.marked),
        chain.from_iterable(map(text_findings, listing.tools)),
        similar_findings(listing.tools, embedder),
        chain.from_iterable(size_findings(name, parts) for name, parts in tokens.items()),
        shorter_findings(shorter),
    )
    kept = worst_first(finding for finding in findings if finding.rule not in ignored)
    return LintReport(listing.declared_name, tokens, tuple(kept), tuple(shorter))


def text_findings(tool: ToolDefinition) -> Iterator[Finding]:
    """Yield the findings on the texts that a model reads; it reads no title."""
    fields = tool.for_model()
    description = fields.get("description")
    if not _is_text(description):
        yield broken("missing-tool-description", tool.name, "a model sees only the name")
    elif not set(prose_terms(str(description))) - set(prose_terms(words(tool.name))):
        yield broken("unclear-description", tool.name, "the description repeats the name")
    schema, documented = object_of(fields.get("inputSchema")), labels(tool.description)
    for name, parameter in parameters_of(tool).items():
        if name in _required(schema) and not (_is_described(parameter, schema) or name in documented):
            yield broken("missing-parameter-description", tool.name, "it has no description", name)


def _required(schema: Mapping[str, Any]) -> list[object]:
    required = schema.get("required")
    return cast("list[object]", required) if isinstance(required, list) else []


def _is_described(parameter: object, root: Mapping[str, Any]) -> bool:
    """Return whether the schema, or one that it refers to, has a description."""
    for _ in range(_MAX_REFERENCES):
        schema = object_of(parameter)
        if _is_text(schema.get("description")):
            return True
        parameter = _referred(schema, root)
    return False


def _referred(schema: Mapping[str, Any], root: Mapping[str, Any]) -> object:
    """Return the definition that the schema refers to, or else the only schema in its `allOf` or `anyOf`."""
    key, _, name = str(schema.get("$ref", "")).removeprefix("#/").partition("/")
    if key in DEFINITIONS:
        return object_of(root.get(key)).get(name)
    listed = (cast("list[object]", schema[key]) for key in ("allOf", "anyOf") if isinstance(schema.get(key), list))
    return next((schemas[0] for schemas in listed if len(schemas) == 1), None)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def similar_findings(tools: Sequence[ToolDefinition], embedder: Embedder) -> Iterator[Finding]:
    """Yield a finding for each tool whose description is almost equal to that of an earlier tool, with the nearest.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    described = [tool for tool in tools if tool.for_model().get("description")]
    vectors = embedder.passages([tool.description for tool in described])
    for position in range(1, len(described)):
        cosines = vectors[:position] @ vectors[position]
        nearest = int(cosines.argmax())
        if cosines[nearest] >= SIMILAR:
            message = f"like the description of {described[nearest].name} (cosine {cosines[nearest]:.2f})"
            yield broken("similar-descriptions", described[position].name, message)


class Percentiles(BaseModel):
    """The size in tokens that 90 and 99 percent of a corpus do not exceed; `number` sizes were counted."""

    model_config = ConfigDict(frozen=True)

    number: int
    p90: int
    p99: int


class Corpus(BaseModel):
    """The sizes of public tools, of their descriptions and of their parameters, in the model form."""

    model_config = ConfigDict(frozen=True)

    measured_on: str
    encoding: Encoding
    servers: int
    tool: Percentiles
    description: Percentiles
    parameter: Percentiles

    def __str__(self) -> str:
        return f"{self.tool.number} tools of {self.servers} public servers, measured on {self.measured_on}"


@cache
def corpus() -> Corpus:
    """Return the corpus that ships with Toolscale."""
    return Corpus.model_validate_json(CORPUS.read_bytes())


def size_findings(tool: str, parts: Mapping[Field, int]) -> Iterator[Finding]:
    """Yield a finding for each size of a tool beyond the 90th percentile; beyond the 99th it is a warning."""
    yield from _beyond("large-tool", tool, sum(parts.values()), corpus().tool)
    yield from _beyond("long-description", tool, parts.get(DESCRIPTION, 0), corpus().description)
    for part, tokens in parts.items():
        if part.is_parameter:
            yield from _beyond("large-parameter", tool, tokens, corpus().parameter, part.name)


def _beyond(
    rule: RuleId, tool: str, tokens: int, sizes: Percentiles, parameter: str | None = None
) -> Iterator[Finding]:
    levels: dict[int, Level] = {sizes.p99: "warning", sizes.p90: "note"}
    for limit, level in levels.items():
        if tokens > limit:
            share = 99 if limit == sizes.p99 else 90
            message = f"{tokens:,} tokens; {share} % of the corpus have at most {limit:,}"
            yield Finding(rule, level, tool, message, parameter)
            return


def shorter_definitions(tools: Sequence[ToolDefinition], count: Counter) -> list[Leaner]:
    """Return the shorter form of each tool.

    Raises:
        CountFailed: a text could not be counted.
    """
    shared = shared_sentences(tools)
    return [leaner(tool, shared, count) for tool in tools]


def shorter_findings(shorter: Sequence[Leaner]) -> Iterator[Finding]:
    """Yield a finding for each tool with a shorter form, and for each with long enums, which stay.

    A finding names the sentences that the shorter form lacks.
    """
    for each in shorter:
        parts = [f"{each.saved:,} tokens less without {removals_named(each.removed)}"] if each.saved else []
        parts += [f"for the server's instructions: {' '.join(each.sentences)}"] if each.sentences else []
        parts += [f"long enums take {each.enums:,} tokens"] if each.enums > 0 else []
        if parts:
            yield broken("leaner-definition", each.definition.name, "; ".join(parts))
