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
from shared.index.open_versions import IndexVersions, OpenVersion, active_index, open_index_versions
from shared.settings import Settings
from shared.slots import LargePayloadSlots
from shared.text.embedding import Embedder, FastEmbedder, known_models
from shared.text.tokens import Counter, counters
from workers.intents.store import Intent, IntentStore
from workers.metrics import WorkerMetrics


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """When a server that gives no list is given up: hidden after so many `looks`, stopped after so many seconds."""

    quarantine_after: int = 5
    # A day: a server that is down overnight or over a release comes back by itself.
    give_up_after_s: float = 86_400.0


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
    failure_policy: FailurePolicy = FailurePolicy()
    versions: IndexVersions | None = None
    rollout: ModelRollout | None = None
    next_version: OpenVersion | None = None
    slots: LargePayloadSlots = field(default_factory=lambda: LargePayloadSlots(1))
    embedding_slots: AbstractContextManager[object] = field(default_factory=nullcontext)
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)

    def pinned(self) -> Dependencies:
        """Return the same with the editions as of now: for one look, asked for when it holds its lease.

        The coming edition is complete only if no look that began before it was wanted still writes.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        if self.versions is None:
            return self
        active, next_version = self.versions.current()
        return replace(self, index=active.index, embedder=active.embedder, next_version=next_version)

    @property
    def targets(self) -> list[Dependencies]:
        """Return the neighbours for each edition that a look writes tools to.

        The one in service is the last: what it lacks is compared, so an interrupted look is repeated for both.
        """
        if self.next_version is None:
            return [self]
        return [
            replace(self, index=self.next_version.index, embedder=self.next_version.embedder, next_version=None),
            self,
        ]

    def close(self) -> None:
        """Release the index; the intents belong to who opened them."""
        if self.versions:
            self.versions.store.close()
        else:
            self.index.close()


def open_dependencies(settings: Settings, intents: IntentStore, metrics: WorkerMetrics | None = None) -> Dependencies:
    """Open what a look needs beside the intents; the model is loaded when the first text is embedded.

    Raises:
        IndexUnavailable: Qdrant does not answer.
        ConfigInvalid: another process holds the data directory.
    """
    embedder = FastEmbedder(settings.embedding_model)
    versions = open_index_versions(settings, embedder)
    with ExitStack() as opened:
        opened.callback(versions.store.close)
        versions.store.ensure_active_version(versions.own, known_models)
        opened.pop_all()
    slots = LargePayloadSlots(settings.listing_max_large)
    return Dependencies(
        intents=intents,
        index=active_index(lambda: versions.current()[0]),
        embedder=embedder,
        versions=versions,
        rollout=ModelRollout(versions),
        counters=counters(),
        list_server=lister(settings, slots),
        slots=slots,
        failure_policy=FailurePolicy(settings.quarantine_after),
        embedding_slots=threading.BoundedSemaphore(settings.embedding_concurrency),
        metrics=metrics or WorkerMetrics(),
    )


def lister(settings: Settings, slots: LargePayloadSlots) -> Callable[[Intent], Listing]:
    """Return the function that dials a server and lists its tools, within the operator's guards.

    A large list waits for the server's turn, which is the caller's to give back.
    """
    from shared.upstream.dialler import dialler_for  # noqa: PLC0415  # the SDK takes half a second to import
    from workers.fetch.fetch import Limits, fetch_tools_blocking  # noqa: PLC0415

    dialler = dialler_for(settings, os.environ)
    limits = Limits(timeout_s=settings.listing_timeout_s)

    def list_server(intent: Intent) -> Listing:
        target = dialler.target(intent.server_id, intent.announcement.endpoint)
        return fetch_tools_blocking(intent.server_id, target, limits, partial(slots.try_acquire, intent.server_id))

    return list_server


_log = structlog.get_logger()


class ModelRollout:
    """Asks for the edition of the settings to be made and put into service. Safe to call from several threads."""

    def __init__(self, versions: IndexVersions) -> None:
        self._versions = versions
        self._requesting = threading.Lock()
        self._requested = False
        self._last_reason = ""

    def request_once(self) -> None:
        """Ask unless this process did; a model that cannot be loaded is not asked for, and tried again later.

        Returns at once while another thread is asking, since loading may mean to download.
        """
        if self._requested or not self._requesting.acquire(blocking=False):
            return
        try:
            self._request()
        except (IndexUnavailable, ModelUnavailable) as error:
            self._warn_once(str(error))
        finally:
            self._requesting.release()

    def _request(self) -> None:
        own, store = self._versions.own, self._versions.store
        service = store.versions()
        if service.active and service.requested != own:
            if service.active != own:
                self._versions.embedder(own.model).query("ready")
            store.request_version(own)
            _log.info("index_version_requested", model=own.model, collection=own.name, active=service.active.name)
        self._requested = service.active is not None

    def _warn_once(self, reason: str) -> None:
        if reason != self._last_reason:
            _log.warning("index_version_request_failed", model=self._versions.own.model, reason=reason)
            self._last_reason = reason
