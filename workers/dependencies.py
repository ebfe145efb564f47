"""The neighbours of the write path, opened once per process and passed as arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.catalog import DefinitionPolicy, Encoding, Listing
from shared.errors import IndexUnavailable
from shared.index.tools import ToolIndex
from shared.index.versions import IndexVersion, IndexVersions, OpenVersion, active_index, open_index_versions
from shared.intents import times
from shared.intents.intent import Intent
from shared.intents.intents import Intents, open_intents
from shared.settings import Settings
from shared.text.embedding import Embedder, FastEmbedder, known_models
from shared.text.tokens import Counter, counters
from workers.fetch.turns import LargePayloadSlots, StartTurns, starts_at_once
from workers.indexing.features import FeatureLocks
from workers.indexing.records import FailurePolicy
from workers.upkeep.migrate import ModelRollout
from workers.upkeep.recover import rebuild_if_lost

if TYPE_CHECKING:
    from workers.fetch.lister import Share

# Large lists (256 KiB or 10,000 values in a response) that one worker holds at a time; others wait. Each needs up to
# 64 MiB, and a hundred times the memory of a usual one while it is parsed.
LARGE_LISTS = 2

# Reconciliations of a worker that count and embed at a time: while the first waits for the interpreter, the second
# uses the core.
COMPUTING_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The neighbours of the write path; `list_server` returns a complete listing or raises a ServerError.

    `index` reads the active index version. `computing` is held while a reconciliation counts and embeds, so that
    listings get the processor in between. `slots` are for large listings, from the first page to the last write.
    `starts` are the turns of stdio servers to start. `definition_changes` is the policy of a server without a label.
    """

    intents: Intents
    index: ToolIndex
    embedder: Embedder
    counters: Mapping[Encoding, Counter]
    list_server: Callable[[Intent], Listing]
    failure_policy: FailurePolicy = field(default_factory=FailurePolicy)
    versions: IndexVersions | None = None
    rollout: ModelRollout | None = None
    slots: LargePayloadSlots = field(default_factory=lambda: LargePayloadSlots(1))
    starts: StartTurns = field(default_factory=lambda: StartTurns(1))
    computing: AbstractContextManager[object] = field(default_factory=nullcontext)
    definition_changes: DefinitionPolicy = "notify"
    feature_locks: FeatureLocks = field(default_factory=FeatureLocks)

    def active(self) -> OpenVersion:
        """Return the active index version; without `versions`, the one of `index` and `embedder`.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        if self.versions is None:
            own = IndexVersion(self.embedder.model, self.embedder.dimension)
            return OpenVersion(own, self.index, self.embedder)
        return self.versions.current()[0]

    def is_active(self, version: IndexVersion) -> bool:
        """Return whether this version is still active.

        Raises:
            IndexUnavailable: the index does not answer.
        """
        return self.versions is None or self.versions.is_active(version)

    def close(self) -> None:
        """Close the index; the caller closes the intents."""
        if self.versions:
            self.versions.store.close()


def open_dependencies(settings: Settings, intents: Intents, share: Share | None = None) -> Dependencies:
    """Open the neighbours other than the intents; the first embedded text loads the model. `share` is for the lister.

    Raises:
        IndexUnavailable: Qdrant does not answer.
        ConfigInvalid: another process holds the data directory, or the policy file is invalid.
    """
    slots, starts = LargePayloadSlots(LARGE_LISTS), StartTurns(starts_at_once())
    list_server = lister(settings, slots, starts, share)
    embedder = FastEmbedder(settings.embedding_model)
    versions = open_index_versions(settings, embedder)
    with ExitStack() as opened:
        opened.callback(versions.store.close)
        versions.store.ensure_active_version(versions.own, known_models)
        opened.pop_all()
    return Dependencies(
        intents=intents,
        index=active_index(lambda: versions.current()[0]),
        embedder=embedder,
        versions=versions,
        rollout=ModelRollout(versions),
        counters=counters(),
        list_server=list_server,
        slots=slots,
        starts=starts,
        failure_policy=FailurePolicy(times.QUARANTINE_AFTER),
        computing=threading.BoundedSemaphore(COMPUTING_AT_ONCE),
        definition_changes=settings.definition_changes,
    )


def lister(
    settings: Settings, slots: LargePayloadSlots, starts: StartTurns, share: Share | None = None
) -> Callable[[Intent], Listing]:
    """Return the function that connects to a server and lists its tools, within the limits of the settings.

    A large list waits for a slot, which the caller releases. A stdio server waits for a turn to start, and its time
    begins then; it has the time to install packages, unless its last start succeeded in this process.

    Raises:
        ConfigInvalid: the policy file is invalid.
    """
    from workers.fetch.lister import Lister  # noqa: PLC0415  # the SDK takes half a second to import

    list_server = Lister(settings, slots, starts, share=share).list_server
    return lambda intent: list_server(intent.announcement, intent.announced_at)


class LazyDependencies:
    """Opens the dependencies once, on first use in this process, and closes them at its end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: Dependencies | None = None
        self._intents: Intents | None = None
        self._opening = threading.RLock()
        # a separate lock: opening the index may wait for a server that does not answer
        self._opening_intents = threading.Lock()

    def intents(self) -> Intents:
        """Return the intent store, without opening the index: events are recorded when the index does not answer."""
        with self._opening_intents:
            if self._intents is None:
                self._intents = open_intents(self._settings)
            return self._intents

    def dependencies(self) -> Dependencies:
        """Return the opened dependencies; the first call requests the model of the settings."""
        with self._opening:
            if self._opened is None:
                self._opened = open_dependencies(self._settings, self.intents())
                with suppress(IndexUnavailable):  # as the sweep does; before any reconciliation, fewer are needed
                    if self._opened.versions:
                        rebuild_if_lost(self._opened.versions, self._opened.intents)
            opened = self._opened
        if opened.rollout:
            opened.rollout.request_once()
        return opened

    def touch_index(self) -> None:
        """Write a point without readers.

        Raises:
            IndexUnavailable: the index accepts no writes.
        """
        versions = self.dependencies().versions
        if versions:
            versions.store.check_writable()

    def close(self) -> None:
        """Close the opened stores in reverse order."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None
        with self._opening_intents:
            if self._intents is not None:
                self._intents.close()
            self._intents = None
