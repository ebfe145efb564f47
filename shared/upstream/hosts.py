"""The operator's lists of hosts and networks, and the resolved host of an event's URL."""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from shared.errors import AddressForbidden, ServerUnreachable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], list[str]]
"""Returns the addresses of a host and port; raises OSError if the name does not resolve."""

# Link-local ranges and the metadata services of clouds, which return credentials to any local client.
FORBIDDEN_NETWORKS: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::254/128",
        "fd20:ce::254/128",
        "168.63.129.16/32",
        "100.100.100.200/32",
        "192.0.0.192/32",
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")


@dataclass(frozen=True, slots=True)
class ResolvedHost:
    """A host and its current addresses."""

    host: str
    addresses: tuple[Address, ...]


def resolve(host: str, port: int) -> list[str]:
    """Return the host's addresses by the rules of the C library, which accepts `127.1`.

    Raises:
        OSError: the name does not resolve.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]).partition("%")[0] for entry in found]


class Hosts:
    """A list of host names, `*.example.org`, networks in CIDR notation and addresses; `*` is any host."""

    def __init__(self, listed: Collection[str]) -> None:
        self._any = "*" in listed
        self._networks = tuple(network for entry in listed if (network := _network(entry)))
        self._names = tuple(entry.lower() for entry in listed if entry != "*" and not _network(entry))

    def lists_name(self, host: str) -> bool:
        """Return whether the host's name is listed; its addresses do not matter."""
        return self._any or any(fnmatch.fnmatchcase(host, name) for name in self._names)

    def contains(self, host: ResolvedHost) -> bool:
        """Return whether the host's name or each of its addresses is listed."""
        return self.lists_name(host.host) or all(
            _is_in(form, self._networks) for address in host.addresses for form in _forms(address)
        )


class AllowList:
    """The hosts and networks allowed in events."""

    def __init__(self, allowed: Collection[str], resolve: Resolver) -> None:
        self._resolve = resolve
        self._allowed = Hosts(allowed)

    def check(self, server_id: str, url: str) -> ResolvedHost:
        """Return the host of the URL with its current addresses, all of them allowed.

        Raises:
            AddressForbidden: the URL is malformed, contains credentials, or resolves to a forbidden address.
            ServerUnreachable: the name of an allowed host does not resolve.
        """
        host, port = _host_and_port(server_id, url)
        try:
            addresses = list(dict.fromkeys(map(ipaddress.ip_address, self._resolve(host, port))))
        except (OSError, UnicodeError) as error:
            if self._allowed.lists_name(host):
                raise ServerUnreachable(server_id, f"the host name {host} does not resolve") from error
            raise AddressForbidden(server_id, f"{host} is not among the allowed hosts") from error
        for address in addresses:
            self._check_address(server_id, ResolvedHost(host, (address,)))
        return ResolvedHost(host, tuple(addresses))

    def _check_address(self, server_id: str, host: ResolvedHost) -> None:
        (address,) = host.addresses
        if any(_is_in(form, FORBIDDEN_NETWORKS) for form in _forms(address)):
            reason = f"{host.host} leads to {address}, a link-local or cloud metadata address"
            raise AddressForbidden(server_id, reason)
        if not self._allowed.contains(host):
            raise AddressForbidden(server_id, f"{host.host} ({address}) is not among the allowed hosts and networks")


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _host_and_port(server_id: str, url: str) -> tuple[str, int]:
    # other parsers treat a backslash, white space or a non-ASCII dot differently
    if not (url.isascii() and url.isprintable()) or any(sign in url for sign in "\\ "):
        raise AddressForbidden(server_id, "the URL holds characters that do not belong into one")
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError) as error:
        raise AddressForbidden(server_id, "the URL is not a well-formed http or https URL") from error
    return _host(server_id, parts), port


def _host(server_id: str, parts: SplitResult) -> str:
    if "@" in parts.netloc:
        raise AddressForbidden(server_id, "the URL carries credentials; name them by credential_ref instead")
    if not parts.hostname:
        raise AddressForbidden(server_id, "the URL names no host")
    return parts.hostname.rstrip(".")


def _forms(address: Address) -> list[Address]:
    """Return the address and, for an IPv6 address that embeds an IPv4 address, that address too."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped:
        return [address.ipv4_mapped]
    wrapped: list[Callable[[ipaddress.IPv6Address], Address | None]] = [
        lambda six: six.sixtofour,
        lambda six: six.teredo[1] if six.teredo else None,
        lambda six: ipaddress.IPv4Address(int(six) & 0xFFFFFFFF) if six in _NAT64 or six in _NAT64_LOCAL else None,
    ]
    return [address, *(four for unwrap in wrapped if (four := unwrap(address)))]


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)


def is_loopback(host: str) -> bool:
    """Return whether this is a loopback address or `localhost`; other names are not resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
