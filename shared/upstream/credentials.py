"""Secrets by name, and the hosts that each may be sent to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from shared.errors import ServerAuthRequired
from shared.upstream.hosts import Hosts, ResolvedHost

_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Credentials:
    """Secrets by name: `TOOLSCALE_CREDENTIAL_<NAME>` in the environment, else a file of that name."""

    def __init__(self, directory: Path | None, environ: Mapping[str, str], policy: CredentialPolicy) -> None:
        self._directory = directory
        self._environ = environ
        self._policy = policy

    def headers(self, server_id: str, reference: str | None, host: ResolvedHost) -> dict[str, str]:
        """Return the header that carries the named credential to this place, none without a name.

        Raises:
            ServerAuthRequired: no usable credential has that name, or policy forbids sending it; the message never
                holds its value.
        """
        if reference is None:
            return {}
        if not self._policy.allows(reference, host):
            raise ServerAuthRequired(server_id, f"the credential {reference!r} may not be sent to {host.host}")
        secret = self._look_up(reference) if _REFERENCE.fullmatch(reference) else None
        if not secret or not (secret.isascii() and secret.isprintable()):
            raise ServerAuthRequired(
                server_id, f"no usable credential named {reference!r} in the environment or directory"
            )
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


class CredentialPolicy:
    """Which hosts credentials are bound to: those of a table, and where there is none, all that are listed as allowed.

    With a table a credential that it does not name is sent nowhere. `*` lists no host: what any host would get, whoever
    names one would.
    """

    def __init__(self, allowed: Collection[str], table: Mapping[str, Collection[str]] | None = None) -> None:
        self._unbound = Hosts(set(allowed) - {"*"})
        self._table = None if table is None else {name: Hosts(hosts) for name, hosts in table.items()}

    def allows(self, reference: str, host: ResolvedHost) -> bool:
        """Return whether the credential of this name may be sent to this place."""
        hosts = self._unbound if self._table is None else self._table.get(reference)
        return hosts is not None and hosts.contains(host)
