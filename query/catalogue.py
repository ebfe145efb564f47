"""The index, model and settings of the query service, opened once per process and passed as one argument."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from query.answers.budget import ResponsePolicy, response_policy
from query.policy import ReadPolicy, no_policy, policy_reader
from query.records import Ledger, Run, run_behind, run_now
from query.scopes import PolicyScopes
from query.search.ranking import CATEGORIES, NO_MATCH_THRESHOLD
from query.usage.last_calls import LastCalls
from query.usage.recent_calls import NO_CALLS, CallCounts, RecentCalls
from query.usage.record import Event, not_recorded, recording
from shared.catalog import DEFAULT_ENCODING
from shared.errors import FollowedConfigUnavailable, IntentsUnavailable, ModelUnavailable
from shared.index.versions import active_index
from shared.service.every import every
from shared.service.process import full_environment
from shared.upstream.followed_config import FollowedConfig, FollowedConfigStore, followed_config_store
from shared.upstream.mcp_json import ConfigFile
from shared.upstream.server_rules import ReadOptions, no_options, options_reader

if TYPE_CHECKING:
    from query.caller import Caller
    from query.usage.usage import Usage
    from shared.catalog import Encoding, Scope
    from shared.index.tools import ToolIndex
    from shared.index.versions import IndexVersions, OpenVersion
    from shared.intents.intents import Intents
    from shared.settings import Settings
    from shared.text.embedding import Embedder


# A version that is no longer active stays searchable for minutes, so an idle service need not read often.
REFRESH_EVERY_S = 10.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The index, its readers, and the policy of responses."""

    index: ToolIndex
    embedder: Embedder
    ledger: Ledger
    encoding: Encoding = DEFAULT_ENCODING
    no_match_threshold: float = NO_MATCH_THRESHOLD
    current_version: Callable[[], OpenVersion] | None = None
    is_filled: Callable[[bool], bool] = lambda _: True
    """Returns whether the index has the tools of every server; True as its argument: as of some seconds ago."""
    filling: Callable[[], str | None] = lambda: None
    """Returns the reason why processes of the release before answer better than this one, None if there is none."""
    index_is_embedded: bool = False
    response_policy: ResponsePolicy = field(default_factory=ResponsePolicy)
    usage: Usage | None = None
    """The use of the service by day; None if this process keeps none."""
    record: Callable[[Event], None] = not_recorded
    """Adds an event to the usage in the background."""
    recent_calls: Callable[[str], CallCounts] = lambda _: NO_CALLS
    """Returns the calls of a caller in the last weeks, as of some minutes ago."""
    last_calls: LastCalls = field(default_factory=LastCalls)
    followed_config: Callable[[], FollowedConfig | None] = lambda: None
    """Returns the state of the followed `mcp.json`, None if no process follows one."""
    intents: Intents | None = None
    """The intents of the servers; None if this process cannot read them."""
    read_policy: ReadPolicy = no_policy
    policy_scopes: PolicyScopes = field(default_factory=PolicyScopes)
    read_options: ReadOptions = no_options
    resync_interval_s: float = 0.0
    stdio_resync_interval_s: float = 0.0
    operator_entry: Callable[[str], object] = lambda _: None
    """Returns the entry of a server as it is written in the operator's `mcp.json`, None without one."""

    def scope(self, caller: Caller) -> Scope:
        """Return the scope of a caller without the tools that the policy denies. Reads the index: call it in a thread.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        rules = self.read_policy().of(caller)
        return self.policy_scopes.without_denied(caller.scope, rules, self.ledger, self.pinned().index)

    def dead_letters(self) -> int | None:
        """Return the number of dead letters, None where it cannot be read."""
        try:
            return self.intents.backlog().dead_letters if self.intents else None
        except IntentsUnavailable:
            return None

    def pinned(self) -> Catalogue:
        """Return the catalogue for one request: its index and embedder belong to one index version until the end."""
        if self.current_version is None:
            return self
        version = self.current_version()
        return replace(self, index=version.index, embedder=version.embedder, current_version=None)


def catalogue_of(
    index: ToolIndex,
    embedder: Embedder,
    settings: Settings,
    run: Run = run_now,
) -> Catalogue:
    """Return the catalogue of this index with these settings; `run` runs comparisons of the ledger.

    Raises:
        ConfigInvalid: the policy file is invalid.
    """
    return Catalogue(
        index,
        embedder,
        Ledger(index, run=run),
        settings.token_encoding,
        settings.no_match_threshold,
        index_is_embedded=settings.qdrant_url is None,
        response_policy=response_policy(settings),
        read_policy=policy_reader(settings),
        read_options=options_reader(settings, full_environment()),
        resync_interval_s=settings.resync_interval_s,
        stdio_resync_interval_s=settings.stdio_resync_interval_s,
    )


def live_catalogue(live: LiveIndex, settings: Settings) -> Catalogue:
    """Return the catalogue of the active index version, as it changes."""
    catalogue = catalogue_of(live.index, live.current().embedder, settings, run_behind)
    followed = partial(_followed_config, followed_config_store(settings))
    if settings.mcp_config:
        catalogue = replace(catalogue, operator_entry=ConfigFile(settings.mcp_config, full_environment()).entry)
    return replace(
        catalogue,
        current_version=live.current,
        is_filled=live.is_filled,
        filling=live.filling,
        followed_config=followed,
    )


@contextmanager
def recorded(catalogue: Catalogue, usage: Usage) -> Generator[Catalogue]:
    """Yield the catalogue with its usage, which is recorded until the block ends; queued events are written first."""
    with closing(RecentCalls(usage)) as calls, recording(usage) as recorder:
        yield replace(catalogue, usage=usage, record=recorder.record, recent_calls=calls.of)


def _followed_config(store: FollowedConfigStore) -> FollowedConfig | None:
    """Return the state of the followed file; None, with a warning in the log, if it cannot be read."""
    try:
        return store.get()
    except FollowedConfigUnavailable as error:
        _log.warning("followed_config_not_read", reason=str(error))
        return None


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
        CATEGORIES.of(embedder)
    except ModelUnavailable as error:
        _log.error("model_unavailable", model=embedder.model, reason=str(error))
