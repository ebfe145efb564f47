"""The edition in service, followed while the service runs: another model needs no restart."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from query.search.tool_categories import category_vectors
from shared.errors import IndexUnavailable, ModelUnavailable
from shared.index.open_versions import active_index

if TYPE_CHECKING:
    from shared.index.contract import ToolIndex
    from shared.index.open_versions import IndexVersions, OpenVersion
    from shared.text.embedding import Embedder

REFRESH_EVERY_S = 1.0

_log = structlog.get_logger()


class LiveIndex:
    """What is searched now. Its index and embedder are of one edition, and stay usable after another took over."""

    def __init__(self, versions: IndexVersions) -> None:
        """Load the model of the edition in service; without it, keywords alone are searched.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        self._versions = versions
        versions.ensure_own_version()
        self._current, _ = versions.current()
        _load(self._current.embedder)

    def current(self) -> OpenVersion:
        """Return the edition to be searched by one request."""
        return self._current

    @property
    def index(self) -> ToolIndex:
        """Return the index over whatever edition is in service when it is asked; for all but searches."""
        return active_index(self.current)

    def is_complete(self) -> bool:
        """Return whether the index holds what workers wrote: one that lost it, or is new, is still being filled.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        return self._versions.store.is_complete()

    def refresh(self) -> None:
        """Change to the edition in service if it is another one, once its model is loaded.

        Raises:
            IndexUnavailable: the index does not answer; what was searched before still is.
        """
        latest, _ = self._versions.current()
        if latest.version != self._current.version:
            _load(latest.embedder)
            self._current = latest
            _log.info("index_version_switched", model=latest.version.model, collection=latest.version.name)


@contextmanager
def live_index(versions: IndexVersions, every_s: float = REFRESH_EVERY_S) -> Generator[LiveIndex]:
    """Follow the edition in service by a thread until the block ends.

    Raises:
        IndexUnavailable: the index does not answer.
    """
    live, stopped = LiveIndex(versions), threading.Event()

    def refresh_until_stopped() -> None:
        while not stopped.wait(every_s):
            try:
                live.refresh()
            except IndexUnavailable as error:
                _log.debug("index_version_unreadable", reason=str(error))

    thread = threading.Thread(target=refresh_until_stopped, name="toolscale editions", daemon=True)
    thread.start()
    try:
        yield live
    finally:
        stopped.set()
        thread.join(timeout=10)


def _load(embedder: Embedder) -> None:
    """Load the model now, and embed the kinds of tools: seconds that the first caller would wait."""
    try:
        category_vectors(embedder)
    except ModelUnavailable as error:
        _log.error("model_unavailable", model=embedder.model, reason=str(error))
