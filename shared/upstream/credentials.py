"""Secrets by name, and the hosts that may receive them."""

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
        """Return the header with the named credential for this host; no header without a name.

        Raises:
            ServerAuthRequired: no usable credential has that name, or the host may not receive it; the message never
                contains its value.
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
            return None  # an unreadable file is no usable credential


class CredentialPolicy:
    """The hosts that may receive a credential: those of a table; without a table, all allowed hosts.

    With a table, other credentials are never sent. `*` allows no host here: any event could then collect credentials.
    """

    def __init__(self, allowed: Collection[str], table: Mapping[str, Collection[str]] | None = None) -> None:
        self._unbound = Hosts(set(allowed) - {"*"})
        self._table = None if table is None else {name: Hosts(hosts) for name, hosts in table.items()}

    def allows(self, reference: str, host: ResolvedHost) -> bool:
        """Return whether this host may receive the credential of this name."""
        hosts = self._unbound if self._table is None else self._table.get(reference)
        return hosts is not None and hosts.contains(host)
