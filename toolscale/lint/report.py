"""All findings of a server's listing, with the tokens of each tool by field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from shared.text.tokens import Field, counter, tokens_by_field
from toolscale.lint.findings import Finding, broken, worst_first
from toolscale.lint.shorter import shorter_definitions, shorter_findings
from toolscale.lint.similar import similar_findings
from toolscale.lint.sizes import corpus, size_findings
from toolscale.lint.texts import text_findings

if TYPE_CHECKING:
    from shared.catalog import Listing
    from shared.text.embedding import Embedder
    from shared.text.leaner import Leaner


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
