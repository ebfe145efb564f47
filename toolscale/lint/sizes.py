"""Sizes beyond the percentiles of a measured corpus of public servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from shared.catalog import Encoding
from shared.text.tokens import DESCRIPTION, Field
from toolscale.lint.findings import Finding, Level, RuleId

CORPUS = Path(__file__).with_name("corpus.json")


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
