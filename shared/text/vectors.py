"""Vectors of tools and queries; the write side and the read side must use the same version."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from shared.catalog import QueryVectors, ToolVectors
from shared.text.bm25 import query_terms, tool_terms
from shared.text.embedding import name_passage, text_passage

if TYPE_CHECKING:
    from shared.catalog import ToolDefinition
    from shared.text.embedding import Embedder


def tool_vectors(tools: Sequence[ToolDefinition], declared_name: str, embedder: Embedder) -> list[ToolVectors]:
    """Return the vectors of a server's tools, in their order; equal texts are embedded once.

    Raises:
        ModelUnavailable: the model cannot be loaded.
    """
    passages = [(name_passage(tool, declared_name), text_passage(tool)) for tool in tools]
    distinct = list(dict.fromkeys(chain.from_iterable(passages)))
    vector_of = dict(zip(distinct, embedder.passages(distinct), strict=True))
    return [
        ToolVectors(vector_of[name], vector_of[text], tool_terms(tool, declared_name))
        for tool, (name, text) in zip(tools, passages, strict=True)
    ]


def query_vectors(text: str, embedder: Embedder, characters: int | None = None) -> QueryVectors:
    """Return a query's vectors; the model reads at most so many of its first characters, BM25 all.

    Raises:
        ModelUnavailable: the model cannot be loaded; `keyword_vectors` needs no model.
    """
    return QueryVectors(embedder.query(text[:characters]), query_terms(text))


def keyword_vectors(text: str) -> QueryVectors:
    """Return the vectors of a query without a model: its terms."""
    return QueryVectors(None, query_terms(text))
