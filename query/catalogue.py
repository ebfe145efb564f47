"""The index, model and settings of the query service, opened once per process and passed as one argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from query.answers.budget import ResponsePolicy, response_policy
from query.policy.rules import ReadPolicy, no_policy, policy_reader
from query.savings.ledger import Ledger, Run, run_behind, run_now
from query.search.no_match import NO_MATCH_THRESHOLD
from shared.errors import FollowedConfigUnavailable
from shared.service.process import full_environment
from shared.upstream.followed_config import FollowedConfig, FollowedConfigStore, followed_config_store
from shared.upstream.mcp_json import ConfigFile

if TYPE_CHECKING:
    from query.history.recorder import UsageRecorder
    from query.search.live_index import LiveIndex
    from shared.catalog import Encoding
    from shared.index.tools import ToolIndex
    from shared.index.versions import OpenVersion
    from shared.settings import Settings
    from shared.text.embedding import Embedder


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The index, its readers, and the policy of responses."""

    index: ToolIndex
    embedder: Embedder
    ledger: Ledger
    encoding: Encoding = "cl100k_base"
    no_match_threshold: float = NO_MATCH_THRESHOLD
    current_version: Callable[[], OpenVersion] | None = None
    is_filled: Callable[[bool], bool] = lambda _: True
    """Returns whether the index has the tools of every server; True as its argument: as of some seconds ago."""
    filling: Callable[[], str | None] = lambda: None
    """Returns the reason why processes of the release before answer better than this one, None if there is none."""
    index_is_embedded: bool = False
    response_policy: ResponsePolicy = field(default_factory=ResponsePolicy)
    recorder: UsageRecorder | None = None
    followed_config: Callable[[], FollowedConfig | None] = lambda: None
    """Returns the state of the followed `mcp.json`, None if no process follows one."""
    dead_letters: Callable[[], int | None] = lambda: None
    """Returns the number of dead letters, None if this process does not know it."""
    read_policy: ReadPolicy = no_policy
    resync_interval_s: float = 0.0
    stdio_resync_interval_s: float = 0.0
    operator_entry: Callable[[str], object] = lambda _: None
    """Returns the entry of a server as it is written in the operator's `mcp.json`, None without one."""

    def pinned(self) -> Catalogue:
        """Return the catalogue for one request: its index and embedder belong to one index version until the end."""
        if self.current_version is None:
            return self
        version = self.current_version()
        return replace(self, index=version.index, embedder=version.embedder)


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


def _followed_config(store: FollowedConfigStore) -> FollowedConfig | None:
    """Return the state of the followed file; None, with a warning in the log, if it cannot be read."""
    try:
        return store.get()
    except FollowedConfigUnavailable as error:
        structlog.get_logger().warning("followed_config_not_read", reason=str(error))
        return None
