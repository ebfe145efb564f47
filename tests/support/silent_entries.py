"""A store of cursors' entries that does not answer for a while."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from query.kept import MemoryEntries
from shared.errors import CursorsUnavailable


class SilentEntries(MemoryEntries):
    """Entries in memory that nobody reaches while `is_down`."""

    is_down = True

    @override
    def set(self, name: str, stored: bytes, ttl_s: float) -> None:
        self._check()
        super().set(name, stored, ttl_s)

    @override
    def get(self, name: str, renewed_s: float | None = None) -> bytes | None:
        self._check()
        return super().get(name, renewed_s)

    @override
    def take(self, name: str) -> bytes | None:
        self._check()
        return super().take(name)

    @override
    def delete(self, names: Sequence[str]) -> None:
        self._check()
        super().delete(names)

    def _check(self) -> None:
        if self.is_down:
            raise CursorsUnavailable("down")
