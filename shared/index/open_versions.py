"""Editions at hand: each with the index over it and the model it was made with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from shared.index import open_store
from shared.index.contract import IndexVersion
from shared.text.embedding import FastEmbedder

if TYPE_CHECKING:
    from shared.index.contract import ToolIndex
    from shared.index.versions import IndexStore
    from shared.settings import Settings
    from shared.text.embedding import Embedder


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """An edition with its index and its model: what was embedded by the one is searched in the other."""

    version: IndexVersion
    index: ToolIndex
    embedder: Embedder


class IndexVersions:
    """Opens the editions of a store. Safe to call from several threads.

    `own` is the edition of this process's settings, which is searched while none is in service. An embedder is made
    once for each model, and let go when neither the edition in service nor the coming one needs it.
    """

    def __init__(self, store: IndexStore, own: Embedder, make_embedder: Callable[[str], Embedder]) -> None:
        self.store = store
        self.own = IndexVersion(own.model, own.dimension)
        self._make_embedder = make_embedder
        self._embedders = {own.model: own}
        self._changing = threading.Lock()

    def current(self) -> tuple[OpenVersion, OpenVersion | None]:
        """Return the edition in service and the one that is coming, as of one moment; no model is loaded yet.

        What is deleted, or changes its status, through the first one's index does so in the second one too.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        service = self.store.versions()
        active, next_version = service.active or self.own, service.next_version
        self._keep_embedders({version.model for version in (active, next_version) if version})
        return self._open(active, next_version), self._open(next_version) if next_version else None

    def ensure_own_version(self) -> None:
        """Create our own edition, empty, where none is in service: an index that nobody has written to answers too.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        if self.store.versions().active is None:
            self.store.ensure(self.own)

    def embedder(self, model: str) -> Embedder:
        """Return the embedder of this model."""
        with self._changing:
            if model not in self._embedders:
                self._embedders[model] = self._make_embedder(model)
            return self._embedders[model]

    def _open(self, version: IndexVersion, mirror: IndexVersion | None = None) -> OpenVersion:
        return OpenVersion(version, self.store.index(version, mirror), self.embedder(version.model))

    def _keep_embedders(self, models: set[str]) -> None:
        with self._changing:
            self._embedders = {model: embedder for model, embedder in self._embedders.items() if model in models}


def open_index_versions(settings: Settings, own: Embedder) -> IndexVersions:
    """Return the editions of the index that the settings name; `own` is the embedder of their model.

    Raises:
        IndexUnavailable: the server does not answer.
        ConfigInvalid: the index cannot be opened with these settings.
    """
    return IndexVersions(open_store(settings), own, FastEmbedder)


def active_index(current: Callable[[], OpenVersion]) -> ToolIndex:
    """Return an index that is, at each call, the one over the edition in service then.

    For readers of tools and records. Whoever searches needs index and embedder of the same moment.
    """
    return cast("ToolIndex", _ActiveIndex(current))


class _ActiveIndex:
    def __init__(self, now: Callable[[], OpenVersion]) -> None:
        self._now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now().index, name)
