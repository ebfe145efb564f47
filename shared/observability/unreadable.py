"""The counter of stored documents that this process left out, since it could not read them."""

from __future__ import annotations

from typing import Literal

from prometheus_client import Counter

from shared.observability.metrics import Metric

DOCUMENTS_UNREADABLE = Metric(
    "toolscale_documents_unreadable_total",
    "counter",
    "documents",
    "Reads of invalid stored documents, which were left out, by kind: `intent`, `server`, `toolset` or `definitions`.",
    ("kind",),
)
METRICS = (DOCUMENTS_UNREADABLE,)

UNREADABLE = Counter(
    DOCUMENTS_UNREADABLE.name, DOCUMENTS_UNREADABLE.description, DOCUMENTS_UNREADABLE.labels, registry=None
)
"""Of this process; each registry of metrics shows it. Stores have no metrics of their own."""


def count_unreadable(kind: Literal["intent", "server", "toolset", "definitions"]) -> None:
    """Count a document that is left out."""
    UNREADABLE.labels(kind).inc()
