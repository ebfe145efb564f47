"""Where a server listens and how to reach it: the only place that decides what may be dialled.

What an operator wrote into the configuration is trusted. What an event brought is not: its host must be on the
allow-list, its addresses are resolved and checked here, once, and the connection goes to those and no others.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import SplitResult, urlsplit

from shared.catalog import Endpoint
from shared.errors import AddressForbidden, ServerRefused, ServerUnreachable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], list[str]]
"""Returns the addresses of a host and port; raises OSError when there are none."""

# Link-local ranges and the metadata services of clouds: they hand out credentials to whoever asks.
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
_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True)
class StdioTarget:
    """A server that is a child process. It sees a minimal environment and, on top of it, `env`."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A server behind a URL. `addresses`, when given, are the only ones that are connected to, tried in order."""

    url: str = field(repr=False)
    transport: Literal["streamable-http", "sse"] = "streamable-http"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    addresses: tuple[str, ...] = ()


Target = StdioTarget | HttpTarget


class Configured(Protocol):
    """The operator's own servers, as they are now: a mapping, or a file that may change."""

    def get(self, server_id: str, /) -> Target | None:
        """Return how a server is reached, None when it is not the operator's own."""
        ...


def resolve(host: str, port: int) -> list[str]:
    """Return the host's addresses as the C library sees them: `127.1` is an address to it.

    Raises:
        OSError: the name does not resolve.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]).partition("%")[0] for entry in found]


class Dialler:
    """Turns a server's id and endpoint into a target that may be connected to.

    `allowed_hosts` holds host names, `*.example.org`, networks in CIDR notation, addresses, or `*` for any.
    """

    def __init__(
        self,
        configured: Configured,
        allowed_hosts: frozenset[str],
        credentials_dir: Path | None,
        environ: Mapping[str, str],
        resolve: Resolver = resolve,
    ) -> None:
        self._configured = configured
        self._allowed = AllowList(allowed_hosts, resolve)
        self._credentials = Credentials(credentials_dir, environ)

    def target(self, server_id: str, endpoint: Endpoint) -> Target:
        """Return where and how to connect, looked up and checked now. Blocks while a host name is resolved.

        Raises:
            AddressForbidden: the endpoint is not the operator's own and not on the allow-list.
            ServerRefused: its `credential_ref` names no credential.
            ServerUnreachable: its host name does not resolve.
        """
        if configured := self._configured.get(server_id):
            return configured
        if endpoint.transport == "stdio" or endpoint.url is None:
            raise AddressForbidden(server_id, "stdio servers come only from the operator's own file")
        addresses = self._allowed.check(server_id, endpoint.url)
        headers = self._credentials.headers(server_id, endpoint.credential_ref)
        return HttpTarget(endpoint.url, endpoint.transport, headers, addresses=addresses)


class Credentials:
    """Secrets by name: `TOOLSCALE_CREDENTIAL_<NAME>` in the environment, else a file of that name."""

    def __init__(self, directory: Path | None, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = environ

    def headers(self, server_id: str, reference: str | None) -> dict[str, str]:
        """Return the header that carries the named credential, none without a name.

        Raises:
            ServerRefused: there is no usable credential of that name; the message never holds its value.
        """
        if reference is None:
            return {}
        secret = self._look_up(reference) if _REFERENCE.fullmatch(reference) else None
        if not secret or not (secret.isascii() and secret.isprintable()):
            raise ServerRefused(server_id, f"no usable credential named {reference!r} in the environment or directory")
        return {"Authorization": f"Bearer {secret}"}

    def _look_up(self, reference: str) -> str | None:
        variable = f"TOOLSCALE_CREDENTIAL_{reference.upper().replace('-', '_')}"
        if variable in self._environ:
            return self._environ[variable].strip()
        try:
            path = self._directory / reference if self._directory else None
            return path.read_text(encoding="utf-8").strip() if path and path.is_file() else None
        except (OSError, UnicodeDecodeError):
            return None  # as little a usable credential as none


class AllowList:
    """The hosts and networks that an event may point to."""

    def __init__(self, allowed: frozenset[str], resolve: Resolver) -> None:
        self._resolve = resolve
        self._any = "*" in allowed
        self._networks = tuple(network for entry in allowed if (network := _network(entry)))
        self._names = tuple(entry.lower() for entry in allowed if entry != "*" and not _network(entry))

    def check(self, server_id: str, url: str) -> tuple[str, ...]:
        """Return the addresses that the URL's host has now, all of them allowed.

        Raises:
            AddressForbidden: the URL is malformed, carries credentials, or leads outside the list.
            ServerUnreachable: the name of an allowed host does not resolve.
        """
        host, port = _host_and_port(server_id, url)
        try:
            addresses = list(dict.fromkeys(map(ipaddress.ip_address, self._resolve(host, port))))
        except (OSError, UnicodeError) as error:
            if self._any or self._names_host(host):
                raise ServerUnreachable(server_id, f"the host name {host} does not resolve") from error
            raise AddressForbidden(server_id, f"{host} is not among the allowed hosts") from error
        for address in addresses:
            self._check_address(server_id, host, address)
        return tuple(map(str, addresses))

    def _check_address(self, server_id: str, host: str, address: Address) -> None:
        forms = _forms(address)
        if any(_is_in(form, FORBIDDEN_NETWORKS) for form in forms):
            raise AddressForbidden(server_id, f"{host} leads to {address}, a link-local or cloud metadata address")
        if not (self._any or self._names_host(host) or all(_is_in(form, self._networks) for form in forms)):
            raise AddressForbidden(server_id, f"{host} ({address}) is not among the allowed hosts and networks")

    def _names_host(self, host: str) -> bool:
        return any(fnmatch.fnmatchcase(host, name) for name in self._names)


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _host_and_port(server_id: str, url: str) -> tuple[str, int]:
    # other parsers read a backslash, white space or a non-ASCII dot differently: no room for two opinions
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
    """Return what a packet to this address may arrive at: itself, or the IPv4 address wrapped in it as well."""
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
