"""Targets of connections to servers, and their transports; the only module that decides which addresses are allowed.

Entries of the operator's configuration are trusted. Endpoints of events are not: the host must be on the
allow-list. Its addresses are resolved and checked once, and the connection uses only these addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from shared.catalog import Endpoint
from shared.errors import AddressForbidden
from shared.index import addresses
from shared.service.redis import parse_redis_url
from shared.upstream.auth import LISTING, SERVICE, Requester
from shared.upstream.credentials import CredentialPolicy, Credentials
from shared.upstream.hosts import AllowList, Resolver, is_loopback, resolve
from shared.upstream.http import proxy_for
from shared.upstream.log import log_directory, log_file
from shared.upstream.mcp_json import ConfigFile
from shared.upstream.oauth import OAuthServer
from shared.upstream.server_rules import ReadOptions, no_options, options_reader
from shared.upstream.sign_ins import SignIns, open_sign_ins
from shared.upstream.target import HttpTarget, StdioTarget, Target
from shared.upstream.tokens import AccessTokens

if TYPE_CHECKING:
    from shared.settings import Settings
    from shared.upstream.options import ServerOptions


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
    file in `logs`, if given. `read_options` are the operator's for each server. Without `sign_ins`, nobody can sign in.
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
        read_options: ReadOptions = no_options,
        sign_ins: SignIns | None = None,
    ) -> None:
        self._operator_servers = operator_servers
        self._stdio_env = {name: environ[name] for name in stdio_env if name in environ}
        self._logs = logs
        self._allowed = AllowList(allowed_hosts, resolve, stores)
        self._anywhere = AllowList({"*"}, resolve, stores)
        self._credentials = Credentials(credentials_dir, environ, CredentialPolicy(allowed_hosts, credential_hosts))
        self._read_options, self._sign_ins = read_options, sign_ins

    def target(self, server_id: str, endpoint: Endpoint) -> Target:
        """Return the target, resolved and checked now. Blocks while a host name is resolved.

        Raises:
            AddressForbidden: the endpoint is not the operator's own and not on the allow-list.
            ServerAuthRequired: its `credential_ref` names no credential, or the host may not receive it.
            ServerUnreachable: its host name does not resolve.
        """
        if target := self._operator_servers.get(server_id):
            if isinstance(target, StdioTarget) and (self._stdio_env or self._logs):
                log = log_file(self._logs, server_id) if self._logs else None
                return replace(target, env={**self._stdio_env, **target.env}, log=log)
            return target
        if endpoint.transport == "stdio" or endpoint.url is None:
            raise AddressForbidden(server_id, "stdio servers come only from the operator's own file")
        host = self._allowed.check(server_id, endpoint.url)
        headers = self._credentials.headers(server_id, endpoint.credential_ref, host)
        return HttpTarget(endpoint.url, endpoint.transport, headers, addresses=tuple(map(str, host.addresses)))

    def listing_target(self, server_id: str, endpoint: Endpoint, labels: Mapping[str, str]) -> Target:
        """Return the target with the tokens of the service; blocks and raises as `target`."""
        return self.authenticated(self.target(server_id, endpoint), server_id, labels)

    def options(self, server_id: str, labels: Mapping[str, str]) -> ServerOptions:
        """Return the operator's options of a server, as they are now."""
        return self._read_options(server_id, labels)

    def authenticated(
        self, target: Target, server_id: str, labels: Mapping[str, str], requester: Requester = LISTING
    ) -> Target:
        """Return the target as the requester may use it: with its tokens or headers, or a process of its own.

        An `Authorization` of the operator stays.
        """
        options = self._read_options(server_id, labels)
        if isinstance(target, StdioTarget):
            return _process_for(target, requester, is_stateful=options.is_stateful)
        if self._sign_ins is None:
            return target
        auth = options.auth
        owner = requester.caller if auth.type == "caller" else SERVICE
        passed = {name: value for name in auth.headers if (value := requester.headers.get(name.lower()))}
        session = requester.session or requester.caller
        whose = session if auth.type != "service" else SERVICE
        target = replace(target, headers={**target.headers, **passed}, owner=whose)
        if any(name.lower() == "authorization" for name in target.headers):
            return target
        has_machine = auth.credential is not None and owner == SERVICE
        tokens = AccessTokens(
            self._sign_ins,
            self.oauth_server(target, server_id, labels),
            owner,
            partial(self._credentials.machine, server_id, auth.credential or "") if has_machine else None,
            borrows=requester is LISTING and auth.listing == "first-caller",
            login=f"toolscale login {server_id} --service" if auth.type == "caller" and owner == SERVICE else "",
        )
        return replace(target, tokens=tokens, is_shareable=auth.type == "caller")

    def oauth_server(self, target: HttpTarget, server_id: str, labels: Mapping[str, str]) -> OAuthServer:
        """Return the server as one that a person can sign in to."""
        client = self._read_options(server_id, labels).oauth
        return OAuthServer(server_id, target.url, partial(self._issuer_target, server_id, target), client)

    def _issuer_target(self, server_id: str, server: HttpTarget, url: str) -> HttpTarget:
        """Return the target of a URL of a server's authorization server, which the server names."""
        if server.addresses:  # the server is not trusted, nor are the addresses that it names
            return HttpTarget(url, addresses=tuple(map(str, self._allowed.check(server_id, url).addresses)))
        own, target = urlsplit(server.url), HttpTarget(url)
        if urlsplit(url).scheme not in ("https", own.scheme):
            raise AddressForbidden(server_id, "its authorization server has no https URL")
        if is_loopback(own.hostname or "") or proxy_for(target):  # a proxy resolves the name
            return target
        # the operator trusts the server, which must not lead us to this machine, or to a metadata service of a cloud
        return replace(target, addresses=tuple(map(str, self._anywhere.check(server_id, url).addresses)))


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
        read_options=options_reader(settings, environ),
        sign_ins=open_sign_ins(settings),
    )


def store_addresses(settings: Settings) -> frozenset[tuple[str, int]]:
    """Return the hosts and ports of Redis, of its Sentinels, and of the nodes of Qdrant, as in their URLs."""
    stores: list[tuple[str, int]] = []
    if settings.redis_url:
        stores += parse_redis_url(settings.redis_url).addresses
    nodes = map(urlsplit, addresses(settings.qdrant_url or ""))
    stores += ((node.hostname or "", node.port or 0) for node in nodes)
    return frozenset(stores)


def _process_for(target: StdioTarget, requester: Requester, *, is_stateful: bool) -> StdioTarget:
    """Return the target as a process of the requester, of its project, or of all callers."""
    owner = requester.session if is_stateful else SERVICE
    if not target.depends_on_project:
        return replace(target, owner=owner)
    # without a project, as for a listing, the one that this process was started in
    in_project = target.in_project(requester.directory or str(Path.cwd()))
    return replace(in_project, owner=owner or requester.project)
