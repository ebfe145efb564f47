"""What the query service answers from, opened once per process and passed on as one argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from query.metrics import QueryMetrics
from query.paging.policy import Answers, answers_of
from query.savings.ledger import Ledger
from query.search.no_match import NO_MATCH_BELOW

if TYPE_CHECKING:
    from query.history.recorder import Recorder
    from query.search.live_index import Following
    from shared.catalog import Encoding
    from shared.index.contract import ToolIndex
    from shared.index.open_versions import OpenEdition
    from shared.settings import Settings
    from shared.text.embedding import Embedder


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The index, what reads it, and how answers are made of it."""

    index: ToolIndex
    embedder: Embedder
    ledger: Ledger
    encoding: Encoding = "cl100k_base"
    no_match_below: float = NO_MATCH_BELOW
    now: Callable[[], OpenEdition] | None = None
    is_whole: Callable[[], bool] = lambda: True
    answers: Answers = field(default_factory=Answers)
    savings: Recorder | None = None
    metrics: QueryMetrics = field(default_factory=QueryMetrics)

    def pinned(self) -> Catalogue:
        """Return the catalogue for one request: index and embedder of one edition, whatever is switched meanwhile."""
        if self.now is None:
            return self
        edition = self.now()
        return replace(self, index=edition.index, embedder=edition.embedder)


def catalogue_of(
    index: ToolIndex, embedder: Embedder, settings: Settings, metrics: QueryMetrics | None = None
) -> Catalogue:
    """Return the catalogue in this index, answered from as the settings say, and counted in `metrics`.

    Raises:
        ConfigInvalid: the key of the cursors cannot be read or written.
    """
    metrics = metrics or QueryMetrics()
    return Catalogue(
        index,
        embedder,
        Ledger(index),
        settings.token_encoding,
        settings.no_match_below,
        answers=answers_of(settings, metrics.cut),
        metrics=metrics,
    )


def followed_catalogue(followed: Following, settings: Settings, metrics: QueryMetrics | None = None) -> Catalogue:
    """Return the catalogue of whatever edition is in service."""
    catalogue = catalogue_of(followed.index, followed.now().embedder, settings, metrics)
    return replace(catalogue, now=followed.now, is_whole=followed.is_whole)
