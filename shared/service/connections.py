"""The connections of callers: a limit in all, and the rule that chooses which connection to close for a new one.

The address with the most connections loses one, so an address cannot keep others out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Protocol

import structlog

from shared.observability.line_limit import LineLimit

_IPV6_SUBSCRIBER = 64  # bits: a host has all addresses of such a network

_log = structlog.get_logger()


class Connection(Protocol):
    """A connection of a caller."""

    @property
    def is_idle(self) -> bool:
        """Return whether no request is in flight."""
        ...

    @property
    def awaits_client(self) -> bool:
        """Return whether the service can do nothing before the client sends, or reads, more."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""


class Connections:
    """The open connections, at most `limit`. All methods run in one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._addresses: dict[Connection, str] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._lines = LineLimit(max_lines=1)

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._addresses

    def add(self, connection: Connection, host: str | None) -> None:
        """Add a connection from this host; above the limit, close one, which may be this one."""
        address = address_of(host)
        self._addresses[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        if len(self) > self.limit:
            self._close_one(connection)

    def renew(self, connection: Connection) -> None:
        """Make this connection the last of its address to be closed: it has just ended a request."""
        if address := self._addresses.get(connection):
            connections = self._by_address[address]
            del connections[connection]
            connections[connection] = None

    def remove(self, connection: Connection) -> None:
        """Remove a connection, if it is still there."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        connections = self._by_address[address]
        del connections[connection]
        if not connections:
            del self._by_address[address]

    def close(self, connection: Connection) -> None:
        """Remove a connection and close it."""
        self.remove(connection)
        connection.abort()

    def _close_one(self, new: Connection) -> None:
        closed = self._closable(new)
        left_out = self._lines.admit()
        if left_out is not None:
            _log.warning(
                "connection_limit_reached", limit=self.limit, client=self._addresses[closed], left_out=left_out
            )
        self.close(closed)

    def _closable(self, new: Connection) -> Connection:
        """Return the connection to close; one in use only where its address has more than that of the new one."""
        largest, *_ = crowds = self._crowds()
        is_larger = len(largest) > len(self._by_address[self._addresses[new]])
        if is_larger and _closable_of(largest) is None:
            return next(reversed(largest))
        return next(filter(None, map(_closable_of, crowds)), new)

    def _crowds(self) -> list[dict[Connection, None]]:
        """Return the connections of each address, the address with the most first."""
        return sorted(self._by_address.values(), key=len, reverse=True)


def address_of(host: str | None) -> str:
    """Return the address that counts for a client: of IPv6 its network, "local" for a socket without addresses."""
    if not host:
        return "local"
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address), _IPV6_SUBSCRIBER), strict=False))


def _closable_of(connections: Collection[Connection]) -> Connection | None:
    """Return the connection that was idle for the longest time, else the first that waits for its client."""
    idle = next((connection for connection in connections if connection.is_idle), None)
    return idle or next((connection for connection in connections if connection.awaits_client), None)
