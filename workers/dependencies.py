"""What a look at a server works with, opened once per process and passed on as arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shared.catalog import Encoding, Listing
from shared.embedding import Embedder, FastEmbedder
from shared.index import open_index
from shared.index.contract import ToolIndex
from shared.settings import Settings
from shared.tokens import Counter, counters
from workers.intents.contract import Intent, IntentStore


@dataclass(frozen=True, slots=True)
class Patience:
    """When a server that gives no list is given up: hidden after so many `looks`, stopped after so many seconds."""

    looks: int = 5
    stop_after_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The neighbours of the write path; `list_server` returns a complete listing or raises a ServerError."""

    intents: IntentStore
    index: ToolIndex
    embedder: Embedder
    counters: Mapping[Encoding, Counter]
    list_server: Callable[[Intent], Listing]
    patience: Patience = Patience()

    def close(self) -> None:
        """Release the index; the intents belong to who opened them."""
        self.index.close()


def open_dependencies(settings: Settings, intents: IntentStore) -> Dependencies:
    """Open what a look needs beside the intents; the model is loaded when the first text is embedded.

    Raises:
        IndexUnavailable: Qdrant does not answer.
        ConfigInvalid: another process holds the data directory.
    """
    embedder = FastEmbedder(settings.embedding_model, settings.embedding_threads)
    return Dependencies(
        intents=intents,
        index=open_index(settings, embedder.model, embedder.dimension),
        embedder=embedder,
        counters=counters(),
        list_server=lister(settings),
        patience=Patience(settings.quarantine_after, settings.stop_after_s),
    )


def lister(settings: Settings) -> Callable[[Intent], Listing]:
    """Return the function that dials a server and lists its tools, within the operator's guards."""
    from shared.upstream.config_file import ConfigFile  # noqa: PLC0415
    from shared.upstream.dial import Configured, Dialler  # noqa: PLC0415  # the MCP SDK takes half a second to import
    from workers.fetch import Limits, fetch_tools_blocking  # noqa: PLC0415

    # asked at each look, so that a changed command or header is used by the next one, in every process
    configured: Configured = ConfigFile(settings.config, os.environ) if settings.config else {}
    dialler = Dialler(configured, settings.allowed_hosts, settings.credentials_dir, os.environ)
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
        return fetch_tools_blocking(intent.server_id, target, limits)

    return list_server
