"""The active index version, followed while the service runs: a model change needs no restart."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from query.search.tool_categories import category_vectors
from shared.errors import ModelUnavailable
from shared.index.versions import active_index
from shared.service.every import every

if TYPE_CHECKING:
    from shared.index.tools import ToolIndex
    from shared.index.versions import IndexVersions, OpenVersion
    from shared.text.embedding import Embedder

# A version that is no longer active stays searchable for minutes, so an idle service need not read often.
REFRESH_EVERY_S = 10.0

_log = structlog.get_logger()


class LiveIndex:
    """The version that searches use. Its index and embedder belong together, and stay usable after a switch."""

    def __init__(self, versions: IndexVersions) -> None:
        """Load the model of the active version; if that fails, searches use keywords only.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        self._versions = versions
        versions.ensure_own_version()
        self._is_filled = False
        self._current, _ = versions.current()
        _load(self._current.embedder)

    def current(self) -> OpenVersion:
        """Return the version for one request."""
        return self._current

    @property
    def index(self) -> ToolIndex:
        """Return an index whose every call uses the version that is active then; not for searches."""
        return active_index(self.current)

    def is_filled(self, may_be_old: bool) -> bool:  # a field of `Catalogue`
        """Return whether the index has every server's tools: a new one, or one that lost data, is still being filled.

        `may_be_old`: as of the last refresh, if it was filled then.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        if not (self._is_filled and may_be_old):
            self._is_filled = self._versions.store.is_filled()
        return self._is_filled

    def filling(self) -> str | None:
        """Return a problem while processes of the previous release answer from more tools than this one can read."""
        if self.is_filled(True) or not self._versions.store.has_older_version():
            return None
        return "workers still list servers for this release; the version of an earlier release is there"

    def refresh(self) -> None:
        """Switch to the active version after its model is loaded.

        Raises:
            IndexUnavailable: the index does not answer; the previous version stays in use.
        """
        latest, _ = self._versions.current()
        self._is_filled = self._versions.store.is_filled()
        if latest.version != self._current.version:
            _load(latest.embedder)
            self._current = latest
            _log.info("index_version_switched", model=latest.version.model, collection=latest.version.name)


@contextmanager
def live_index(versions: IndexVersions, every_s: float = REFRESH_EVERY_S) -> Generator[LiveIndex]:
    """Refresh the active version in a thread until the block ends.

    Raises:
        IndexUnavailable: the index does not answer.
    """
    live = LiveIndex(versions)
    with every(every_s, live.refresh, "index_version_unreadable", first_after_s=every_s):
        yield live


def _load(embedder: Embedder) -> None:
    """Load the model and embed the tool categories, so that the first caller does not wait for seconds."""
    try:
        category_vectors(embedder)
    except ModelUnavailable as error:
        _log.error("model_unavailable", model=embedder.model, reason=str(error))
