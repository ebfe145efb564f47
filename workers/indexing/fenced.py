"""Writes to the index that check the lease of their server before and after."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.catalog import DefinitionChange, EmbeddedTool, ServerRecord, Status
    from shared.index.tools import ToolIndex
    from workers.intents.store import Lease


class FencedIndex:
    """The index as one run sees it: reads are those of `index`, and every write needs the lease.

    A process can be suspended between check and write, so the lease is checked again after the write. Every write
    raises LeaseHeld if the lease was lost; the last one may then have come after a write of another run.
    """

    def __init__(self, index: ToolIndex, lease: Lease) -> None:
        self._index = index
        self._lease = lease
        self.features_by_digest = index.features_by_digest
        self.tool_states = index.tool_states
        self.server = index.server
        self.get = index.get
        self.changes = index.changes
        self.token_sum = index.token_sum

    def upsert(self, tools: Sequence[EmbeddedTool]) -> None:
        """Write these tools."""
        with self._fenced():
            self._index.upsert(tools)

    def delete(self, server_id: str, tool_names: Collection[str]) -> None:
        """Remove these tools."""
        with self._fenced():
            self._index.delete(server_id, tool_names)

    def set_status_and_groups(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        """Set status and groups of the server's tools."""
        with self._fenced():
            self._index.set_status_and_groups(server_id, status=status, groups=groups)

    def clear_digests(self, digests: Collection[str]) -> None:
        """Set an empty digest on every tool with one of these digests."""
        with self._fenced():
            self._index.clear_digests(digests)

    def put_server(self, record: ServerRecord) -> None:
        """Write the server's record."""
        with self._fenced():
            self._index.put_server(record)

    def put_changes(self, server_id: str, changes: Sequence[DefinitionChange]) -> None:
        """Replace the changes of the server's definitions."""
        with self._fenced():
            self._index.put_changes(server_id, changes)

    def assert_held(self) -> None:
        """Raise LeaseHeld if the lease was lost, for a write to another store."""
        self._lease.assert_held()

    @contextmanager
    def _fenced(self) -> Generator[None]:
        self.assert_held()
        yield
        self.assert_held()
