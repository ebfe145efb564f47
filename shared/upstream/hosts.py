"""The operator's lists of hosts and networks, and the resolved host of an event's URL."""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

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
        "fd00:ec2::/32",  # AWS, also its pod identities
        "fd20:ce::254/128",  # Google Cloud
        "fd00:c1::a9fe:a9fe/128",  # Oracle Cloud
        "fd00:42::42/128",  # Scaleway
        "fd00:a9fe:a9fe::1/128",  # Akamai
        "fd00:100::100:200/128",  # Alibaba Cloud
        "168.63.129.16/32",  # Azure
        "100.100.100.200/32",  # Alibaba Cloud
        "192.0.0.192/32",  # Oracle Cloud Classic
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")


DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ResolvedHost:
    """The host of a URL, its current addresses, and the URL's scheme and port."""

    host: str
    addresses: tuple[Address, ...]
    scheme: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Return whether connections stay on this machine."""
        return bool(self.addresses) and all(address.is_loopback for address in self.addresses)


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
        return self.lists_name(host.host) or self._lists_addresses(host)

    def lists_url(self, url: str) -> bool:
        """Return whether the host of a URL is listed, without resolving it: a name, or an address of a network."""
        try:
            host = (urlsplit(url).hostname or "").rstrip(".")
        except ValueError:
            return False
        network = _network(host)
        return self.lists_name(host) or (
            network is not None and all(_is_in(form, self._networks) for form in _forms(network.network_address))
        )

    def lists_itself(self, host: ResolvedHost) -> bool:
        """Return whether a name is listed without a pattern; an address or `localhost`, also by its network."""
        return host.host in self._names or (_is_literal(host.host) and self._lists_addresses(host))

    def _lists_addresses(self, host: ResolvedHost) -> bool:
        return all(_is_in(form, self._networks) for address in host.addresses for form in _forms(address))


class AllowList:
    """The hosts and networks allowed in events; `stores` are the hosts and ports of our own stores."""

    def __init__(
        self, allowed: Collection[str], resolve: Resolver, stores: Collection[tuple[str, int]] = frozenset()
    ) -> None:
        self._resolve = resolve
        self._allowed = Hosts(allowed)
        self._stores = stores

    def check(self, server_id: str, url: str) -> ResolvedHost:
        """Return the host of the URL with its current addresses, all of them allowed.

        Raises:
            AddressForbidden: the URL is malformed, contains credentials, or resolves to a forbidden address.
            ServerUnreachable: the name of an allowed host does not resolve.
        """
        scheme, host, port = _parts(server_id, url)
        try:
            addresses = list(dict.fromkeys(map(ipaddress.ip_address, self._resolve(host, port))))
        except (OSError, UnicodeError) as error:
            if self._allowed.lists_name(host):
                raise ServerUnreachable(server_id, f"the host name {host} does not resolve") from error
            raise AddressForbidden(server_id, f"{host} is not among the allowed hosts") from error
        stores = {(address, port) for host, port in self._stores for address in self._addresses(host, port)}
        for address in addresses:
            self._check_address(server_id, ResolvedHost(host, (address,), scheme, port), stores)
        return ResolvedHost(host, tuple(addresses), scheme, port)

    def _check_address(self, server_id: str, host: ResolvedHost, stores: Collection[tuple[Address, int]]) -> None:
        """Reject a forbidden or unlisted address, and a store.

        Loopback, and another port of a store's host, need an entry of their own.
        """
        (address,) = host.addresses
        forms = _forms(address)
        if any(_is_in(form, FORBIDDEN_NETWORKS) for form in forms):
            reason = f"{host.host} leads to {address}, a link-local or cloud metadata address"
            raise AddressForbidden(server_id, reason)
        if not self._allowed.contains(host):
            raise AddressForbidden(server_id, f"{host.host} ({address}) is not among the allowed hosts and networks")
        if any((form, host.port) in stores for form in forms):
            raise AddressForbidden(server_id, f"{host} is a store of Toolscale")
        own = {store for store, _ in stores}
        # connections to the unspecified address stay on this machine
        is_own = any(form.is_loopback or form.is_unspecified or form in own for form in forms)
        if is_own and not self._allowed.lists_itself(host):
            reason = (
                f"{host.host} leads to {address}, a loopback address or the host of a store, and is not listed itself"
            )
            raise AddressForbidden(server_id, reason)

    def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            return list(map(ipaddress.ip_address, self._resolve(host, port)))
        except (OSError, UnicodeError, ValueError):
            return []  # a store whose name does not resolve cannot be reached either


def is_network(entry: str) -> bool:
    """Return whether this is an address, or a network in CIDR notation."""
    return _network(entry) is not None


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _parts(server_id: str, url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of a URL."""
    # other parsers treat a backslash, white space or a non-ASCII dot differently
    if not (url.isascii() and url.isprintable()) or any(sign in url for sign in "\\ "):
        raise AddressForbidden(server_id, "the URL holds characters that do not belong into one")
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError) as error:
        raise AddressForbidden(server_id, "the URL is not a well-formed http or https URL") from error
    if "@" in parts.netloc:
        raise AddressForbidden(server_id, "the URL carries credentials; name them by credential_ref instead")
    if not parts.hostname:
        raise AddressForbidden(server_id, "the URL names no host")
    return parts.scheme, parts.hostname.rstrip("."), port


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


def _is_literal(host: str) -> bool:
    """Return whether no name server decides the addresses: an address in any form of the C library, or `localhost`."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        with suppress(OSError):
            return bool(socket.inet_aton(host))
        return host == "localhost"
    return True


def is_loopback(host: str) -> bool:
    """Return whether this is a loopback address or `localhost`; other names are not resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
