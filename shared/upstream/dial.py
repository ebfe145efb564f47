"""The target of a connection to a server; the only module that decides which addresses are allowed.

Entries of the operator's configuration are trusted. Endpoints of events are not: the host must be on the
allow-list. Its addresses are resolved and checked once, and the connection uses only these addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from shared.catalog import Endpoint
from shared.errors import AddressForbidden
from shared.upstream.credentials import CredentialPolicy, Credentials
from shared.upstream.hosts import AllowList, Resolver, resolve
from shared.upstream.stderr_log import log_file


@dataclass(frozen=True, slots=True)
class StdioTarget:
    """A server that is a child process, with the variables that children inherit and `env`.

    `log` is the file for the child's stderr, if it is kept.
    """

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    log: Path | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A server behind a URL. Connections use only `addresses`, if given, in their order."""

    url: str = field(repr=False)
    transport: Literal["streamable-http", "sse"] = "streamable-http"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    addresses: tuple[str, ...] = ()


Target = StdioTarget | HttpTarget


class OperatorServers(Protocol):
    """The operator's current servers: a mapping, or a file that may change."""

    def get(self, server_id: str, /) -> Target | None:
        """Return the target of a server, None if it is not the operator's.

        Raises:
            AddressForbidden: the server is the operator's and has no valid target.
        """
        ...


class Dialler:
    """Returns allowed targets for server ids and endpoints.

    `allowed_hosts` are the hosts allowed in events; `credential_hosts` is the table of `CredentialPolicy`.
    `stores` are the hosts and ports of our own stores, which no event can name.
    Each child process gets the variables `stdio_env` of `environ`, unless its entry sets them. Its stderr goes to a
    file in `logs`, if given.
    """

    def __init__(
        self,
        operator_servers: OperatorServers,
        allowed_hosts: frozenset[str],
        credentials_dir: Path | None,
        environ: Mapping[str, str],
        resolve: Resolver = resolve,
        credential_hosts: Mapping[str, Collection[str]] | None = None,
        stdio_env: Collection[str] = (),
        logs: Path | None = None,
        stores: Collection[tuple[str, int]] = frozenset(),
    ) -> None:
        self._operator_servers = operator_servers
        self._stdio_env = {name: environ[name] for name in stdio_env if name in environ}
        self._logs = logs
        self._allowed = AllowList(allowed_hosts, resolve, stores)
        self._credentials = Credentials(credentials_dir, environ, CredentialPolicy(allowed_hosts, credential_hosts))

    def target(self, server_id: str, endpoint: Endpoint) -> Target:
        """Return the target, resolved and checked now. Blocks while a host name is resolved.

        Raises:
            AddressForbidden: the endpoint is not the operator's own and not on the allow-list.
            ServerAuthRequired: its `credential_ref` names no credential, or the host may not receive it.
            ServerUnreachable: its host name does not resolve.
        """
        if target := self._operator_servers.get(server_id):
            return self._completed(server_id, target)
        if endpoint.transport == "stdio" or endpoint.url is None:
            raise AddressForbidden(server_id, "stdio servers come only from the operator's own file")
        host = self._allowed.check(server_id, endpoint.url)
        headers = self._credentials.headers(server_id, endpoint.credential_ref, host)
        return HttpTarget(endpoint.url, endpoint.transport, headers, addresses=tuple(map(str, host.addresses)))

    def _completed(self, server_id: str, target: Target) -> Target:
        if not isinstance(target, StdioTarget) or not (self._stdio_env or self._logs):
            return target
        log = log_file(self._logs, server_id) if self._logs else None
        return replace(target, env={**self._stdio_env, **target.env}, log=log)
