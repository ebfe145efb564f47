"""The dialler of a process, from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shared.index import addresses
from shared.upstream.config_file import ConfigFile
from shared.upstream.dial import Dialler, OperatorServers
from shared.upstream.stderr_log import log_directory

if TYPE_CHECKING:
    from shared.settings import Settings


def dialler_for(
    settings: Settings,
    environ: Mapping[str, str],
    operator_servers: OperatorServers | None = None,
    *,
    keeps_logs: bool = True,
) -> Dialler:
    """Return the dialler of these settings, with the operator's servers given here or in `mcp.json`.

    An embedded process keeps the stderr of stdio servers in its data directory, unless `keeps_logs` is false.
    The file is checked at each connection, so that the next connection uses a changed command or header.
    """
    if operator_servers is None:
        operator_servers = ConfigFile(settings.mcp_config, environ) if settings.mcp_config else {}
    return Dialler(
        operator_servers,
        settings.allowed_hosts,
        settings.credentials_dir,
        environ,
        credential_hosts=settings.credential_hosts,
        stdio_env=settings.stdio_env,
        logs=log_directory(settings) if keeps_logs else None,
        stores=store_addresses(settings),
    )


def store_addresses(settings: Settings) -> frozenset[tuple[str, int]]:
    """Return the hosts and ports of Redis, of its Sentinels, and of the nodes of Qdrant, as in their URLs."""
    stores: list[tuple[str, int]] = []
    if settings.redis_url:
        from shared.service.redis import parse_redis_url  # noqa: PLC0415  # loads the client

        stores += parse_redis_url(settings.redis_url).addresses
    nodes = map(urlsplit, addresses(settings.qdrant_url or ""))
    stores += ((node.hostname or "", node.port or 0) for node in nodes)
    return frozenset(stores)
