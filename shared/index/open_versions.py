"""Editions at hand: each with the index over it and the model it was made with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from shared.index import open_store
from shared.index.contract import Edition
from shared.text.embedding import FastEmbedder

if TYPE_CHECKING:
    from shared.index.contract import ToolIndex
    from shared.index.versions import IndexStore
    from shared.settings import Settings
    from shared.text.embedding import Embedder


@dataclass(frozen=True, slots=True)
class OpenEdition:
    """An edition with its index and its model: what was embedded by the one is searched in the other."""

    edition: Edition
    index: ToolIndex
    embedder: Embedder


class Editions:
    """Opens the editions of a store. Safe to call from several threads.

    `own` is the edition of this process's settings, which is searched while none is in service. An embedder is made
    once for each model, and let go when neither the edition in service nor the coming one needs it.
    """

    def __init__(self, store: IndexStore, own: Embedder, make_embedder: Callable[[str], Embedder]) -> None:
        self.store = store
        self.own = Edition(own.model, own.dimension)
        self._make_embedder = make_embedder
        self._embedders = {own.model: own}
        self._changing = threading.Lock()

    def now(self) -> tuple[OpenEdition, OpenEdition | None]:
        """Return the edition in service and the one that is coming, as of one moment; no model is loaded yet.

        What is deleted, or changes its status, through the first one's index does so in the second one too.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        service = self.store.service()
        edition, coming = service.edition or self.own, service.coming
        self._let_go_all_but({each.model for each in (edition, coming) if each})
        return self._open(edition, coming), self._open(coming) if coming else None

    def ensure_one(self) -> None:
        """Create our own edition, empty, where none is in service: an index that nobody has written to answers too.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        if self.store.service().edition is None:
            self.store.ensure(self.own)

    def embedder(self, model: str) -> Embedder:
        """Return the embedder of this model."""
        with self._changing:
            if model not in self._embedders:
                self._embedders[model] = self._make_embedder(model)
            return self._embedders[model]

    def _open(self, edition: Edition, beside: Edition | None = None) -> OpenEdition:
        return OpenEdition(edition, self.store.index(edition, beside), self.embedder(edition.model))

    def _let_go_all_but(self, models: set[str]) -> None:
        with self._changing:
            self._embedders = {model: each for model, each in self._embedders.items() if model in models}


def open_editions(settings: Settings, own: Embedder) -> Editions:
    """Return the editions of the index that the settings name; `own` is the embedder of their model.

    Raises:
        IndexUnavailable: the server does not answer.
        ConfigInvalid: the index cannot be opened with these settings.
    """
    return Editions(open_store(settings), own, partial(FastEmbedder, threads=settings.embedding_threads))


def index_in_service(now: Callable[[], OpenEdition]) -> ToolIndex:
    """Return an index that is, at each call, the one over the edition in service then.

    For readers of tools and records. Whoever searches needs index and embedder of the same moment.
    """
    return cast("ToolIndex", _InService(now))


class _InService:
    def __init__(self, now: Callable[[], OpenEdition]) -> None:
        self._now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now().index, name)
