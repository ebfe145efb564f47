"""Each write of a run checks its lease first: a suspended run writes at most once late."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import ServerTimeout
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.storage import Lease
from tests.chaos.interrupted import InterruptedIndex, Steps
from tests.support.builders import RETRY_POLICY, WritePath, changed, definition, down, listing, up, write_path
from workers.indexing.failures import FailurePolicy
from workers.ingest import reconcile


class Fence(Steps):
    """A lease, and the writes to an index: each needs a check before it and another one after it."""

    # one may remain from the write before
    checks = 1

    def assert_held(self) -> None:
        self.checks += 1

    def next(self) -> None:
        assert self.checks >= 2, "a write without a check of the lease before it, or after the one before"
        self.checks = 0


class FencedIntents(Intents):
    """Intents whose every lease is this fence."""

    fence = Fence()

    @contextmanager
    def lease(self, name: str) -> Generator[Lease]:
        with super().lease(name):
            self.fence.checks = 1
            yield self.fence
            assert self.fence.checks, "no check of the lease after the last write"


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    """A write path that has listed one good server, behind a fence."""
    path = write_path(tmp_path)
    intents = FencedIntents(SqliteStorage(tmp_path / "fenced.sqlite3", path.clock), RETRY_POLICY)
    index = InterruptedIndex(intents.fence)
    deps = replace(path.deps, intents=intents, index=index, failure_policy=FailurePolicy(quarantine_after=2))
    path = replace(path, deps=deps, index=index)
    path.world.servers["s"] = listing(definition("a"))
    intents.record(up(), due_in_s=60)
    reconcile("s", deps)
    return path


def is_down(path: WritePath) -> None:
    path.deps.intents.record(down(), due_in_s=60)
    reconcile("s", path.deps)


def changes(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("b"), declared_name="renamed")
    path.deps.intents.record(up(groups=["ops"]), due_in_s=60)
    reconcile("s", path.deps)


def fails_until_hidden(path: WritePath) -> None:
    path.world.servers["s"] = ServerTimeout("s", "no answer")
    path.deps.intents.record(changed(), due_in_s=60)
    for _ in range(2):
        with suppress(ServerTimeout):
            reconcile("s", path.deps)


def is_silent_too_long(path: WritePath) -> None:
    path.world.servers["s"] = ServerTimeout("s", "no answer")
    path.deps.intents.record(changed(), due_in_s=60)
    with pytest.raises(ServerTimeout):
        reconcile("s", replace(path.deps, failure_policy=FailurePolicy(give_up_after_s=0.0)))


def kills_its_workers(path: WritePath) -> None:
    path.deps.intents.record(changed(), due_in_s=60)
    for _ in range(2):
        path.deps.intents.begin("s")
        path.clock.ahead_s += 1.25 * RETRY_POLICY.longest_s
        path.deps.intents.claim_due(10)
    reconcile("s", path.deps)


@pytest.mark.parametrize(
    ("happen", "status"),
    [
        (is_down, "stopped"),
        (changes, "running"),
        (fails_until_hidden, "quarantined"),
        (is_silent_too_long, "stopped"),
        (kills_its_workers, "quarantined"),
    ],
)
def test_every_write_of_a_run_comes_after_a_check_of_its_lease(
    path: WritePath, happen: Callable[[WritePath], None], status: str
) -> None:
    happen(path)

    record = path.index.server("s")
    assert record is not None
    assert record.status == status
