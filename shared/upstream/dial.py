"""Where a server listens and how to reach it: the only place that decides what may be dialled.

What an operator wrote into the configuration is trusted. What an event brought is not: its host must be on the
allow-list, its addresses are resolved and checked here, once, and the connection goes to those and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from shared.catalog import Endpoint
from shared.errors import AddressForbidden
from shared.upstream.credentials import CredentialPolicy, Credentials
from shared.upstream.hosts import AllowList, Resolver, resolve


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


class OperatorServers(Protocol):
    """The operator's own servers, as they are now: a mapping, or a file that may change."""

    def get(self, server_id: str, /) -> Target | None:
        """Return how a server is reached, None when it is not the operator's own."""
        ...


class Dialler:
    """Turns a server's id and endpoint into a target that may be connected to.

    `allowed_hosts` are where events may point to, as of `Hosts`; `credential_hosts` is the table of `Bound`.
    """

    def __init__(
        self,
        operator_servers: OperatorServers,
        allowed_hosts: frozenset[str],
        credentials_dir: Path | None,
        environ: Mapping[str, str],
        resolve: Resolver = resolve,
        credential_hosts: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._operator_servers = operator_servers
        self._allowed = AllowList(allowed_hosts, resolve)
        self._credentials = Credentials(credentials_dir, environ, CredentialPolicy(allowed_hosts, credential_hosts))

    def target(self, server_id: str, endpoint: Endpoint) -> Target:
        """Return where and how to connect, looked up and checked now. Blocks while a host name is resolved.

        Raises:
            AddressForbidden: the endpoint is not the operator's own and not on the allow-list.
            ServerAuthRequired: its `credential_ref` names no credential, or one that may not be sent there.
            ServerUnreachable: its host name does not resolve.
        """
        if target := self._operator_servers.get(server_id):
            return target
        if endpoint.transport == "stdio" or endpoint.url is None:
            raise AddressForbidden(server_id, "stdio servers come only from the operator's own file")
        host = self._allowed.check(server_id, endpoint.url)
        headers = self._credentials.headers(server_id, endpoint.credential_ref, host)
        return HttpTarget(endpoint.url, endpoint.transport, headers, addresses=tuple(map(str, host.addresses)))
