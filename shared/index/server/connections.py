"""Connections of frequent requests, with the authorities and the proxy of the environment, as those of httpx."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx
import urllib3
from typing_extensions import override
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError
from urllib3.util import parse_url

if TYPE_CHECKING:
    from urllib3._base_connection import BaseHTTPConnection

MAX_CONNECTIONS = 100
# A server that lost its power or its network does not close its connections. Qdrant closes idle ones after 5 s.
IDLE_S = 2.0


def connections(address: str) -> urllib3.PoolManager:
    """Return connections to this address; one that was idle for IDLE_S is opened again before its next use."""
    parts = urlsplit(address)
    ssl_context = httpx.create_ssl_context() if parts.scheme == "https" else None
    proxy = _proxy(parts)
    if not proxy:
        manager = urllib3.PoolManager(maxsize=MAX_CONNECTIONS, ssl_context=ssl_context)
    else:
        headers = urllib3.make_headers(proxy_basic_auth=unquote(parse_url(proxy).auth or "") or None)
        manager = urllib3.ProxyManager(proxy, maxsize=MAX_CONNECTIONS, ssl_context=ssl_context, proxy_headers=headers)
    pools: dict[str, type[HTTPConnectionPool] | type[HTTPSConnectionPool]] = {"http": _Pool, "https": _TlsPool}
    manager.pool_classes_by_scheme = pools
    return manager


def _proxy(parts: SplitResult) -> str:
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    exempt = [host.strip() for host in proxies.get("no", "").split(",")]
    if not proxy or "*" in exempt or any(map(proxy_bypass, (str(parts.hostname), f"{parts.hostname}:{parts.port}"))):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


class _Pool(HTTPConnectionPool):
    """Connections of a host. urllib3 notices only a server that closed its side."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._idle_since_s: WeakKeyDictionary[BaseHTTPConnection, float] = WeakKeyDictionary()

    @override
    def _get_conn(self, timeout: float | None = None) -> BaseHTTPConnection:
        connection = super()._get_conn(timeout)
        since_s = self._idle_since_s.pop(connection, None)
        if since_s is not None and time.monotonic() - since_s >= IDLE_S:
            connection.close()
        return connection

    @override
    def _put_conn(self, conn: BaseHTTPConnection | None) -> None:
        if conn is not None:
            self._idle_since_s[conn] = time.monotonic()
        super()._put_conn(conn)


class _TlsPool(_Pool, HTTPSConnectionPool):
    @override
    def _validate_conn(self, conn: BaseHTTPConnection) -> None:
        """Connect; a handshake without an answer in time counts as no connection, as with httpx."""
        try:
            super()._validate_conn(conn)
        except TimeoutError as error:
            raise ConnectTimeoutError(conn, "the TLS handshake timed out") from error
