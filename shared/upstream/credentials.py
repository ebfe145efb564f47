"""Secrets by name, and the hosts that may receive them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from shared.errors import ServerAuthRequired
from shared.upstream.auth import MachineIdentity
from shared.upstream.hosts import DEFAULT_PORTS, Hosts, ResolvedHost, is_network
from shared.upstream.target import NOT_SENDABLE, SENDABLE
from shared.validation import first_problem

_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Credentials:
    """Secrets by name: `TOOLSCALE_CREDENTIAL_<NAME>` in the environment, else a file of that name."""

    def __init__(self, directory: Path | None, environ: Mapping[str, str], policy: CredentialPolicy) -> None:
        self._directory = directory
        self._environ = environ
        self._policy = policy

    def headers(self, server_id: str, reference: str | None, host: ResolvedHost) -> dict[str, str]:
        """Return the header with the named credential for this host; no header without a name.

        Raises:
            ServerAuthRequired: no usable credential has that name, or the host may not receive it; the message never
                contains its value.
        """
        if reference is None:
            return {}
        if not self._policy.allows(reference, host):
            raise ServerAuthRequired(server_id, f"the credential {reference!r} may not be sent to {host}")
        secret = self._look_up(reference) if _REFERENCE.fullmatch(reference) else None
        if not secret:
            raise ServerAuthRequired(
                server_id, f"no usable credential named {reference!r} in the environment or directory"
            )
        if not SENDABLE.fullmatch(secret):
            raise ServerAuthRequired(server_id, f"the credential {reference!r} cannot be sent: {NOT_SENDABLE}")
        return {"Authorization": f"Bearer {secret}"}

    def machine(self, server_id: str, reference: str) -> MachineIdentity:
        """Return the machine identity in the named credential; its secret goes only to the issuer that it names.

        Raises:
            ServerAuthRequired: no credential of that name is one.
        """
        text = self._look_up(reference)
        if text is None:
            raise ServerAuthRequired(
                server_id, f"no usable credential named {reference!r} in the environment or directory"
            )
        try:
            return MachineIdentity.model_validate_json(text)
        except ValidationError as error:
            reason = f"the credential {reference!r} is no machine identity: {first_problem(error)}"
            raise ServerAuthRequired(server_id, reason) from error

    def _look_up(self, reference: str) -> str | None:
        variable = f"TOOLSCALE_CREDENTIAL_{reference.upper().replace('-', '_')}"
        if variable in self._environ:
            return self._environ[variable].strip()
        try:
            path = self._directory / reference if self._directory else None
            return path.read_text(encoding="utf-8-sig").strip() if path and path.is_file() else None
        except (OSError, UnicodeDecodeError):
            return None  # an unreadable file is no usable credential


class CredentialPolicy:
    """The hosts that may receive a credential: those of a table; without a table, all allowed hosts.

    With a table, other credentials are never sent. `*` allows no host here: any event could then collect credentials.
    A credential is sent over https, or to loopback; over http elsewhere only if its entry begins with `http://`.
    """

    def __init__(self, allowed: Collection[str], table: Mapping[str, Collection[str]] | None = None) -> None:
        self._unbound = Hosts(set(allowed) - {"*"})
        self._table = None if table is None else {name: tuple(map(_receiver, hosts)) for name, hosts in table.items()}

    def allows(self, reference: str, host: ResolvedHost) -> bool:
        """Return whether this host may receive the credential of this name."""
        if self._table is None:
            return self._unbound.contains(host) and _is_private(host)
        return any(receiver.accepts(host) for receiver in self._table.get(reference, ()))


@dataclass(frozen=True, slots=True)
class _Receiver:
    """An entry of the table; without a port, it has the default port of the URL's scheme."""

    hosts: Hosts
    port: str
    is_plain_allowed: bool

    def accepts(self, host: ResolvedHost) -> bool:
        is_port = self.port in ("*", str(host.port)) or (not self.port and host.port == DEFAULT_PORTS[host.scheme])
        return is_port and (self.is_plain_allowed or _is_private(host)) and self.hosts.contains(host)


def _receiver(entry: str) -> _Receiver:
    """Return the entry `[http://]HOST[:PORT]`, where a port `*` is any; an IPv6 host with a port has brackets."""
    scheme, _, place = entry.rpartition("://")
    host, port = place, ""
    if not is_network(place):  # an IPv6 address has colons of its own
        host, _, port = place.removeprefix("[").partition("]:" if "]" in place else ":")
    return _Receiver(Hosts({host.removesuffix("]")}), port, is_plain_allowed=scheme == "http")


def _is_private(host: ResolvedHost) -> bool:
    return host.scheme == "https" or host.is_loopback
