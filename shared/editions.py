"""Editions at hand: each with the index over it and the model it was made with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.index.contract import Edition

if TYPE_CHECKING:
    from shared.embedding import Embedder
    from shared.index.contract import ToolIndex
    from shared.index.store import IndexStore


@dataclass(frozen=True, slots=True)
class OpenEdition:
    """An edition with its index and its model: a query that was embedded by the one is searched in the other."""

    edition: Edition
    index: ToolIndex
    embedder: Embedder


class Editions:
    """Opens editions. A model is made once and let go when neither the edition in service nor the coming one has it.

    `own` is the edition of this process's settings, which is searched while none is in service.
    """

    def __init__(self, store: IndexStore, own: Embedder, make_embedder: Callable[[str], Embedder]) -> None:
        self.store = store
        self.own = Edition(own.model, own.dimension)
        self._make_embedder = make_embedder
        self._embedders = {own.model: own}
        self._changing = threading.Lock()

    def in_service(self) -> OpenEdition:
        """Return the edition that is in service now.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        return self.open(self.store.service().edition or self.own)

    def now(self) -> tuple[OpenEdition, OpenEdition | None]:
        """Return the edition in service and the one that is coming, as of one moment.

        Deletions and changes of status through the first one's index reach the second one as well.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        service = self.store.service()
        edition, coming = service.edition or self.own, service.coming
        self._let_go({each.model for each in (edition, coming) if each})
        return self.open(edition, coming), coming and self.open(coming)

    def open(self, edition: Edition, beside: Edition | None = None) -> OpenEdition:
        """Return this edition; nothing is read and no model loaded yet."""
        return OpenEdition(edition, self.store.index(edition, beside), self._embedder(edition.model))

    def _embedder(self, model: str) -> Embedder:
        with self._changing:
            if model not in self._embedders:
                self._embedders[model] = self._make_embedder(model)
            return self._embedders[model]

    def _let_go(self, models: set[str]) -> None:
        with self._changing:
            kept = {*models, self.own.model}
            self._embedders = {model: each for model, each in self._embedders.items() if model in kept}
