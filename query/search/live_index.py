"""The edition in service, followed while the service runs: another model needs no restart."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from query.search.tool_categories import kind_vectors
from shared.errors import IndexUnavailable, ModelUnavailable
from shared.index.open_versions import index_in_service

if TYPE_CHECKING:
    from shared.index.contract import ToolIndex
    from shared.index.open_versions import Editions, OpenEdition
    from shared.text.embedding import Embedder

LOOK_EVERY_S = 1.0

_log = structlog.get_logger()


class Following:
    """What is searched now. Its index and embedder are of one edition, and stay usable after another took over."""

    def __init__(self, editions: Editions) -> None:
        """Load the model of the edition in service; without it, keywords alone are searched.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        self._editions = editions
        editions.ensure_one()
        self._now, _ = editions.now()
        _load(self._now.embedder)

    def now(self) -> OpenEdition:
        """Return the edition to be searched by one request."""
        return self._now

    @property
    def index(self) -> ToolIndex:
        """Return the index over whatever edition is in service when it is asked; for all but searches."""
        return index_in_service(self.now)

    def is_whole(self) -> bool:
        """Return whether the index holds what workers wrote: one that lost it, or is new, is still being filled.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        return self._editions.store.is_whole()

    def look(self) -> None:
        """Change to the edition in service if it is another one, once its model is loaded.

        Raises:
            IndexUnavailable: the index does not answer; what was searched before still is.
        """
        latest, _ = self._editions.now()
        if latest.edition != self._now.edition:
            _load(latest.embedder)
            self._now = latest
            _log.info("edition_changed", model=latest.edition.model, collection=latest.edition.name)


@contextmanager
def following(editions: Editions, every_s: float = LOOK_EVERY_S) -> Generator[Following]:
    """Follow the edition in service by a thread until the block ends.

    Raises:
        IndexUnavailable: the index does not answer.
    """
    followed, stopped = Following(editions), threading.Event()

    def follow() -> None:
        while not stopped.wait(every_s):
            try:
                followed.look()
            except IndexUnavailable as error:
                _log.debug("edition_not_read", reason=str(error))

    thread = threading.Thread(target=follow, name="toolscale editions", daemon=True)
    thread.start()
    try:
        yield followed
    finally:
        stopped.set()
        thread.join(timeout=10)


def _load(embedder: Embedder) -> None:
    """Load the model now, and embed the kinds of tools: seconds that the first caller would wait."""
    try:
        kind_vectors(embedder)
    except ModelUnavailable as error:
        _log.error("model_unavailable", model=embedder.model, reason=str(error))
