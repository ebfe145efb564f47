"""The listing of one server: of an entry, or of a name in an mcp.json."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigInvalid, ServerUnknown
from shared.upstream.mcp_json import config_of
from toolscale.costs.listing import lister
from toolscale.costs.servers import servers_of

if TYPE_CHECKING:
    from shared.catalog import Listing
    from shared.settings import Settings
    from shared.upstream.mcp_json import Config

# The name of a server without an entry in a file.
_UNNAMED = "server"


def listing_of_entry(entry: Mapping[str, Any], settings: Settings) -> Listing:
    """Start the server of this entry, or connect to it, and return its tools.

    Raises:
        ConfigInvalid: the entry is invalid.
        ServerError: the server could not be listed.
    """
    config = config_of({_UNNAMED: entry}, os.environ)
    return _listing(_UNNAMED, config, {problem.name: problem.reason for problem in config.problems}, settings)


def listing_of_name(name: str, settings: Settings) -> Listing:
    """Return the tools of the server with this name in the mcp.json of the settings, or in the files of clients.

    Raises:
        ConfigInvalid: the file or the entry is invalid.
        ServerUnknown: no file names the server.
        ServerError: the server could not be listed.
    """
    found = servers_of(settings)
    return _listing(name, found.config, dict(found.unusable), settings)


def _listing(name: str, config: Config, unusable: Mapping[str, str], settings: Settings) -> Listing:
    if name in unusable:
        raise ConfigInvalid(f"{name}: {unusable[name]}")
    by_id = {announcement.server_id: announcement for announcement in config.announcements}
    if name not in by_id:
        raise ServerUnknown.near(name, by_id)
    return lister(config.targets, settings)(by_id[name])
