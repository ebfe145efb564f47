"""Shorter definitions of a server's tools that accept the same arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shared.text.leaner import Leaner, leaner, removals_named, shared_sentences
from toolscale.lint.findings import Finding, broken

if TYPE_CHECKING:
    from shared.catalog import ToolDefinition
    from shared.text.tokens import Counter


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
