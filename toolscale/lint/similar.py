"""Descriptions of a server that are almost equal, by the vectors of the bundled model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from toolscale.lint.findings import Finding, broken

if TYPE_CHECKING:
    from shared.catalog import ToolDefinition
    from shared.text.embedding import Embedder

# find_tool put 20 % of such tools before the right one, against 1.5 % of the others: benchmarks/results/definitions.md.
SIMILAR = 0.8


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
