"""HTTP to a Qdrant server or to the nodes of a cluster: by Qdrant's client, and by less code for frequent requests.

A request by Qdrant's client takes 0.8 ms of processor time, and by urllib3 0.25 ms. Both ways use the authorities and
the proxy of the environment.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx
import urllib3
from qdrant_client import QdrantClient
from qdrant_client.http.api_client import Send
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from typing_extensions import override
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError, SSLError
from urllib3.util import parse_url

from shared.errors import ConfigInvalid
from shared.index import addresses
from shared.validation import checked_url

if TYPE_CHECKING:
    from urllib3._base_connection import BaseHTTPConnection

TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 100
# A server that lost its power or its network does not close its connections. Qdrant closes idle ones after 5 s.
IDLE_S = 2.0
# The server compresses in chunks. It sends the last one after the client confirms the others, which takes 40 ms.
HEADERS = {"Accept-Encoding": "identity"}
# Without limits, the client connects for each request to 127.0.0.1.
LIMITS = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=20, keepalive_expiry=IDLE_S)

# The server received nothing, or its process died. Every request of ours may be repeated: writes replace whole points.
_REPEATED = (
    httpx.NetworkError,
    httpx.ConnectTimeout,
    httpx.RemoteProtocolError,
    NewConnectionError,
    ConnectTimeoutError,
    ProtocolError,
    SSLError,
)

T = TypeVar("T")


class ServerClient(QdrantClient):
    """Qdrant's client of a server, with a faster way for frequent requests. Constructing it sends no request."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """Connect to the server at `url`, or to the nodes at several addresses in it."""
        self._managers: dict[str, urllib3.PoolManager] = {}  # close() reads it, also after a failure
        self._nodes = Nodes(addresses(url))
        self._managers.update((address, connections(address)) for address in self._nodes.addresses)
        self._headers = {**HEADERS, "Content-Type": "application/json", **({"api-key": api_key} if api_key else {})}
        # a network of its own may protect the key, and the warning is no line of the log
        warnings.filterwarnings("ignore", message="Api key is used with an insecure connection")
        # a comparison of versions would cost a request and only warn
        super().__init__(
            url=self._nodes.addresses[0],
            api_key=api_key,
            timeout=TIMEOUT_S,
            check_compatibility=False,
            limits=LIMITS,
            headers=HEADERS,
        )
        self.http.client.add_middleware(self._nodes.send)

    def request(self, method: Literal["POST", "PUT"], path: str, body: bytes) -> bytes:
        """Return the body of the response to this JSON.

        Raises:
            ResponseHandlingException: no address answers.
            UnexpectedResponse: the server refuses the request.
        """
        return self._nodes.ask(lambda address: self._requested(method, address, path, body))

    @override
    def close(self, grpc_grace: float | None = None, **kwargs: Any) -> None:
        """Close the connections of both ways."""
        closed, self._managers = self._managers, {}
        for manager in closed.values():
            manager.clear()
        super().close(grpc_grace, **kwargs)

    def _requested(self, method: str, address: str, path: str, body: bytes) -> bytes:
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=TIMEOUT_S)
        manager = self._managers.get(address)
        if manager is None:
            raise ResponseHandlingException(RuntimeError("the client is closed"))
        try:
            response = manager.urlopen(
                method, address + path, body=body, headers=self._headers, timeout=timeout, retries=False, redirect=False
            )
        except HTTPError as error:
            raise ResponseHandlingException(error) from error
        if response.status != HTTPStatus.OK:
            reason, headers = response.reason or "", httpx.Headers(dict(response.headers))
            raise UnexpectedResponse(response.status, reason, response.data, headers)
        return response.data


class Nodes:
    """The addresses of a server. It prefers the address that answered last. Safe to call from several threads.

    Each request gets at least two attempts, so that a request on a connection that the server closed is repeated. A
    request without an answer in time is not repeated; the requests after it go to the next address. A frequent request
    of a cluster is repeated after a 500: a node that has just started has not loaded its shards.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = addresses
        self._preferred = 0

    def ask(self, send: Callable[[str], T]) -> T:
        """Return the response of the first address that answers.

        Raises:
            ResponseHandlingException: no address answers.
            UnexpectedResponse: the server refuses the request.
        """
        attempts = max(2, len(self.addresses))
        for attempt in range(1, attempts + 1):
            number = self._preferred
            try:
                return send(self.addresses[number])
            except (ResponseHandlingException, UnexpectedResponse) as error:
                if isinstance(error, UnexpectedResponse) and (
                    len(self.addresses) == 1 or error.status_code != HTTPStatus.INTERNAL_SERVER_ERROR
                ):
                    raise  # an answer, which another node would repeat
                self._preferred = (number + 1) % len(self.addresses)
                may_be_repeated = isinstance(error, UnexpectedResponse) or isinstance(error.source, _REPEATED)
                if attempt == attempts or not may_be_repeated:
                    raise
        raise AssertionError("unreachable")

    def send(self, request: httpx.Request, send: Send) -> httpx.Response:
        """Do the same for a request of Qdrant's client, as its middleware."""

        def send_to(address: str) -> httpx.Response:
            url = httpx.URL(address)
            request.url = request.url.copy_with(scheme=url.scheme, host=url.host, port=url.port)
            request.headers["Host"] = request.url.netloc.decode("ascii")
            request.extensions["timeout"]["connect"] = CONNECT_TIMEOUT_S
            return send(request)

        return self.ask(send_to)


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
    """Return the proxy of the environment for this address, by the rules of httpx; empty without one."""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    exempt = [host.strip() for host in proxies.get("no", "").split(",")]
    if not proxy or "*" in exempt or any(map(proxy_bypass, (str(parts.hostname), f"{parts.hostname}:{parts.port}"))):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        checked_url(proxy, "http", "https")
    except ValueError as error:
        raise ConfigInvalid(f"the proxy in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY: {error}") from None
    return proxy


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
