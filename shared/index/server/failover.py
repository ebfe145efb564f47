"""Send a request to another node of the Qdrant cluster when the connection to the first one fails."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
from qdrant_client.http.api_client import Send
from qdrant_client.http.exceptions import ResponseHandlingException

CONNECT_TIMEOUT_S = 5.0

# The server received nothing, or its process died. Every request of ours may be repeated: writes replace whole points.
_REPEATED = (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError)


class Failover:
    """Middleware of Qdrant's client: it prefers the address that answered last. Safe to call from several threads.

    Each request gets at least two attempts, so that a request on a connection that the server closed is repeated. A
    request without an answer in time is not repeated; the requests after it go to the next address.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._urls = [httpx.URL(address) for address in addresses]
        self._preferred = 0

    def __call__(self, request: httpx.Request, send: Send) -> httpx.Response:
        """Return the response of the first address that answers.

        Raises:
            ResponseHandlingException: no address answers.
        """
        attempts = max(2, len(self._urls))
        for attempt in range(1, attempts + 1):
            number = self._preferred
            try:
                return send(self._addressed(request, number))
            except ResponseHandlingException as error:
                self._preferred = (number + 1) % len(self._urls)
                if attempt == attempts or not isinstance(error.source, _REPEATED):
                    raise
        raise AssertionError("unreachable")

    def _addressed(self, request: httpx.Request, number: int) -> httpx.Request:
        url = self._urls[number]
        request.url = request.url.copy_with(scheme=url.scheme, host=url.host, port=url.port)
        request.headers["Host"] = request.url.netloc.decode("ascii")
        request.extensions["timeout"]["connect"] = CONNECT_TIMEOUT_S
        return request
