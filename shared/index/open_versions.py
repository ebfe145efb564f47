"""Open index versions: each with its index and the embedder of its model."""

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
    """An index version with its index and the embedder of its model."""

    version: IndexVersion
    index: ToolIndex
    embedder: Embedder


class IndexVersions:
    """Opens the versions of a store. Safe to call from several threads.

    `own` is the version of this process's settings; it is used while no version is active. Each model has one
    embedder, which is dropped when neither the active nor the next version needs it.
    """

    def __init__(self, store: IndexStore, own: Embedder, make_embedder: Callable[[str], Embedder]) -> None:
        self.store = store
        self.own = IndexVersion(own.model, own.dimension)
        self._make_embedder = make_embedder
        self._embedders = {own.model: own}
        self._changing = threading.Lock()

    def current(self) -> tuple[OpenVersion, OpenVersion | None]:
        """Return the active version and the next one, read at the same moment; loads no model.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        stored = self.store.versions()
        active, next_version = stored.active or self.own, stored.next_version
        self._keep_embedders({version.model for version in (active, next_version) if version})
        return self._open(active), self._open(next_version) if next_version else None

    def is_active(self, version: IndexVersion) -> bool:
        """Return whether this version is still the active one.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        return (self.store.versions().active or self.own) == version

    def ensure_own_version(self) -> None:
        """Create this process's version, empty, if none is active, so that a new index can be searched.

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

    def _open(self, version: IndexVersion) -> OpenVersion:
        return OpenVersion(version, self.store.index(version), self.embedder(version.model))

    def _keep_embedders(self, models: set[str]) -> None:
        with self._changing:
            self._embedders = {model: embedder for model, embedder in self._embedders.items() if model in models}


def open_index_versions(settings: Settings, own: Embedder) -> IndexVersions:
    """Return the versions of the index in the settings; `own` is the embedder of the model in the settings.

    Raises:
        IndexUnavailable: the server does not answer.
        ConfigInvalid: the index cannot be opened with these settings.
    """
    return IndexVersions(open_store(settings), own, FastEmbedder)


def active_index(current: Callable[[], OpenVersion]) -> ToolIndex:
    """Return an index whose every call uses the version that is active at that moment.

    It serves readers of tools and records. A search needs the index and the embedder of one moment.
    """
    return cast("ToolIndex", _ActiveIndex(current))


class _ActiveIndex:
    def __init__(self, current: Callable[[], OpenVersion]) -> None:
        self._current = current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current().index, name)
