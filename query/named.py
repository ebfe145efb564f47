"""Which servers a request names: by all words of a server's id, or of the name that it declares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from shared.catalog import point_id, server_half
from shared.text.bm25 import query_terms, words

if TYPE_CHECKING:
    from shared.catalog import ServerRecord

# Servers whose names are remembered, some 1 KB each.
REMEMBERED = 1 << 16


def terms_of(text: str) -> frozenset[int]:
    """Return the terms of a text, as BM25 has them."""
    return frozenset(query_terms(text).indices)


def is_named(record: ServerRecord, asked: Set[int]) -> bool:
    """Return whether these terms have all those of the server's id, or all those of its declared name."""
    spelled = {terms_of(record.server_id), terms_of(record.declared_name)}
    return any(name and name <= asked for name in (*spelled, *_in_words(record.server_id, record.declared_name)))


class ServerNames:
    """The names of servers, and the half that the point ids of their tools share."""

    def __init__(self, records: Iterable[ServerRecord] = ()) -> None:
        # by one term of each name, so that a step is compared only with names that have a term of it
        self._by_term: defaultdict[int, list[tuple[frozenset[int], str, str]]] = defaultdict(list)
        for record in records:
            for name in _in_words(record.server_id, record.declared_name):
                self._by_term[min(name)].append((name, _half(record.server_id), record.server_id))

    def named(self, halves: Collection[str], asked: Set[int], strangers: Collection[str]) -> set[str]:
        """Return those of these halves whose server the terms name; a stranger may have any name, so it is not one.

        A name counts by its words: `LinearTickets` has two. By its spelling too, right tools came first less often.
        """
        return {
            half
            for term in asked & self._by_term.keys()
            for name, half, server_id in self._by_term[term]
            if name <= asked and half in halves and server_id not in strangers
        }


@lru_cache(REMEMBERED)
def _in_words(server_id: str, declared_name: str) -> tuple[frozenset[int], ...]:
    """Return the terms of both names' words; a name without any, such as one of stop words, is none."""
    return tuple(filter(None, {terms_of(words(name)) for name in (server_id, declared_name)}))


@lru_cache(REMEMBERED)
def _half(server_id: str) -> str:
    return server_half(point_id(server_id, ""))
