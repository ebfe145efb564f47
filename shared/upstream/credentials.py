"""Secrets by name, and the hosts that each may be sent to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from shared.errors import ServerRefused
from shared.upstream.hosts import Hosts, Place

_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Credentials:
    """Secrets by name: `TOOLSCALE_CREDENTIAL_<NAME>` in the environment, else a file of that name."""

    def __init__(self, directory: Path | None, environ: Mapping[str, str], bound: Bound) -> None:
        self._directory = directory
        self._environ = environ
        self._bound = bound

    def headers(self, server_id: str, reference: str | None, place: Place) -> dict[str, str]:
        """Return the header that carries the named credential to this place, none without a name.

        Raises:
            ServerRefused: there is no usable credential of that name, or it may not be sent there; the message never
                holds its value.
        """
        if reference is None:
            return {}
        if not self._bound.allows(reference, place):
            raise ServerRefused(server_id, f"the credential {reference!r} may not be sent to {place.host}")
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


class Bound:
    """Which hosts credentials are bound to: those of a table, and where there is none, all that are listed as allowed.

    With a table a credential that it does not name is sent nowhere. `*` lists no host: what any host would get, whoever
    names one would.
    """

    def __init__(self, allowed: Collection[str], table: Mapping[str, Collection[str]] | None = None) -> None:
        self._unbound = Hosts(set(allowed) - {"*"})
        self._table = None if table is None else {name: Hosts(hosts) for name, hosts in table.items()}

    def allows(self, reference: str, place: Place) -> bool:
        """Return whether the credential of this name may be sent to this place."""
        hosts = self._unbound if self._table is None else self._table.get(reference)
        return hosts is not None and hosts.hold(place)
