"""Dependencies of a reconciliation that can be interrupted between any two of its steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shared.catalog import EmbeddedTool, ServerRecord, Status
from shared.errors import LeaseHeld
from shared.intents.intents import Intents
from shared.intents.storage import Lease
from tests.support.fakes import FakeIndex
from workers.indexing.features import FeatureLocks


class Crash(BaseException):
    """The worker process dies at this very step: nothing of ours may catch it."""


@dataclass
class Steps:
    """The fates of the steps of a reconciliation, in order; a step is the listing, or a write to the index."""

    interruptions: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def next(self) -> None:
        if self.interruptions:
            self.interruptions.pop(0)()


class InterruptedIndex(FakeIndex):
    """An index before each of whose writes something happens."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def upsert(self, tools: Any) -> None:
        self._steps.next()
        super().upsert(tools)

    def delete(self, server_id: str, tool_names: Any) -> None:
        self._steps.next()
        super().delete(server_id, tool_names)

    def set_status_and_groups(self, server_id: str, *, status: Status, groups: frozenset[str]) -> None:
        self._steps.next()
        super().set_status_and_groups(server_id, status=status, groups=groups)

    def clear_digests(self, digests: Any) -> None:
        self._steps.next()
        super().clear_digests(digests)

    def put_server(self, record: ServerRecord) -> None:
        self._steps.next()
        super().put_server(record)

    def held(self) -> list[EmbeddedTool]:
        return list(self._points.values())


class Leases:
    """Owners of server leases. A test can revoke a lease, as after a pause of its owner."""

    def __init__(self) -> None:
        self._holders: dict[str, object] = {}

    @contextmanager
    def lease(self, server_id: str) -> Generator[Lease]:
        if server_id in self._holders:
            raise LeaseHeld(server_id, "another run holds the lease")
        held = _Held(self, server_id)
        self._holders[server_id] = held
        try:
            yield held
        finally:
            if self.is_held(server_id, held):
                del self._holders[server_id]

    def is_held(self, server_id: str, lease: object) -> bool:
        return self._holders.get(server_id) is lease

    def lose(self, server_id: str) -> None:
        self._holders.pop(server_id, None)


class _Held:
    def __init__(self, leases: Leases, server_id: str) -> None:
        self._leases = leases
        self._server_id = server_id

    def assert_held(self) -> None:
        if not self._leases.is_held(self._server_id, self):
            raise LeaseHeld(self._server_id, "the lease was lost")


class LocksOfManyWorkers(FeatureLocks):
    """Locks of runs that are each in a process of its own, so that none waits for another."""

    @contextmanager
    def held(self, model: str, digests: Collection[str]) -> Generator[frozenset[str]]:
        yield frozenset(digests)


class WithLeases:
    """Intents but for their leases, which are these."""

    def __init__(self, store: Any, leases: Leases) -> None:
        self._store = store
        self.lease = leases.lease
        held: Any = Intents.held
        self.held = partial(held, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
