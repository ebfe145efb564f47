"""What a look at a server works with, opened once per process and passed on as arguments."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from shared.catalog import Encoding, Listing
from shared.errors import IndexUnavailable, ModelUnavailable
from shared.index.contract import ToolIndex
from shared.index.open_versions import Editions, OpenEdition, index_in_service, open_editions
from shared.settings import Settings
from shared.slots import Turns
from shared.text.embedding import Embedder, FastEmbedder, known_models
from shared.text.tokens import Counter, counters
from workers.intents.store import Intent, IntentStore
from workers.metrics import WorkerMetrics


@dataclass(frozen=True, slots=True)
class Patience:
    """When a server that gives no list is given up: hidden after so many `looks`, stopped after so many seconds."""

    looks: int = 5
    stop_after_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The neighbours of the write path; `list_server` returns a complete listing or raises a ServerError.

    `index` and `embedder` are of the edition in service. While `coming` is made to take over, it is written to as well.
    `computing` is held while a look counts and embeds, so that those who list get the processor in between.
    `turns` are for looks at large lists, from the first page to the last tool written.
    """

    intents: IntentStore
    index: ToolIndex
    embedder: Embedder
    counters: Mapping[Encoding, Counter]
    list_server: Callable[[Intent], Listing]
    patience: Patience = Patience()
    editions: Editions | None = None
    own_model: OwnModel | None = None
    coming: OpenEdition | None = None
    turns: Turns = field(default_factory=lambda: Turns(1))
    computing: AbstractContextManager[object] = field(default_factory=nullcontext)
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)

    def current(self) -> Dependencies:
        """Return the same with the editions as of now: for one look, asked for when it holds its lease.

        The coming edition is complete only if no look that began before it was wanted still writes.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        if self.editions is None:
            return self
        edition, coming = self.editions.now()
        return replace(self, index=edition.index, embedder=edition.embedder, coming=coming)

    @property
    def written(self) -> list[Dependencies]:
        """Return the neighbours for each edition that a look writes tools to.

        The one in service is the last: what it lacks is compared, so an interrupted look is repeated for both.
        """
        if self.coming is None:
            return [self]
        return [replace(self, index=self.coming.index, embedder=self.coming.embedder, coming=None), self]

    def close(self) -> None:
        """Release the index; the intents belong to who opened them."""
        if self.editions:
            self.editions.store.close()
        else:
            self.index.close()


def open_dependencies(settings: Settings, intents: IntentStore, metrics: WorkerMetrics | None = None) -> Dependencies:
    """Open what a look needs beside the intents; the model is loaded when the first text is embedded.

    Raises:
        IndexUnavailable: Qdrant does not answer.
        ConfigInvalid: another process holds the data directory.
    """
    embedder = FastEmbedder(settings.embedding_model, settings.embedding_threads)
    editions = open_editions(settings, embedder)
    with ExitStack() as opened:
        opened.callback(editions.store.close)
        editions.store.establish(editions.own, known_models)
        opened.pop_all()
    turns = Turns(settings.listing_large_at_once)
    return Dependencies(
        intents=intents,
        index=index_in_service(lambda: editions.now()[0]),
        embedder=embedder,
        editions=editions,
        own_model=OwnModel(editions),
        counters=counters(),
        list_server=lister(settings, turns),
        turns=turns,
        patience=Patience(settings.quarantine_after, settings.stop_after_s),
        computing=threading.BoundedSemaphore(settings.embedding_concurrency),
        metrics=metrics or WorkerMetrics(),
    )


def lister(settings: Settings, turns: Turns) -> Callable[[Intent], Listing]:
    """Return the function that dials a server and lists its tools, within the operator's guards.

    A large list waits for the server's turn, which is the caller's to give back.
    """
    from shared.upstream.dialler import operators_dialler  # noqa: PLC0415  # the SDK takes half a second to import
    from workers.fetch.fetch import Limits, fetch_tools_blocking  # noqa: PLC0415

    dialler = operators_dialler(settings, os.environ)
    limits = Limits(
        timeout_s=settings.listing_timeout_s,
        max_tools=settings.listing_max_tools,
        max_pages=settings.listing_max_pages,
        max_message_bytes=settings.listing_max_message_bytes,
        max_tool_bytes=settings.tool_max_bytes,
        max_total_bytes=settings.listing_max_total_bytes,
    )

    def list_server(intent: Intent) -> Listing:
        target = dialler.target(intent.server_id, intent.announcement.endpoint)
        return fetch_tools_blocking(intent.server_id, target, limits, partial(turns.try_take, intent.server_id))

    return list_server


_log = structlog.get_logger()


class OwnModel:
    """Asks for the edition of the settings to be made and put into service. Safe to call from several threads."""

    def __init__(self, editions: Editions) -> None:
        self._editions = editions
        self._asking = threading.Lock()
        self._asked = False
        self._last_reason = ""

    def ask_once(self) -> None:
        """Ask unless this process did; a model that cannot be loaded is not asked for, and tried again later.

        Returns at once while another thread is asking, since loading may mean to download.
        """
        if self._asked or not self._asking.acquire(blocking=False):
            return
        try:
            self._ask()
        except (IndexUnavailable, ModelUnavailable) as error:
            self._tell(str(error))
        finally:
            self._asking.release()

    def _ask(self) -> None:
        own, store = self._editions.own, self._editions.store
        service = store.service()
        if service.edition and service.wanted != own:
            if service.edition != own:
                self._editions.embedder(own.model).query("ready")
            store.want(own)
            _log.info("edition_wanted", model=own.model, collection=own.name, in_service=service.edition.name)
        self._asked = service.edition is not None

    def _tell(self, reason: str) -> None:
        if reason != self._last_reason:
            _log.warning("edition_not_wanted", model=self._editions.own.model, reason=reason)
            self._last_reason = reason
