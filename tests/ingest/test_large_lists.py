"""A large list holds a slot from its first page to the last written tool; small lists need none."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from shared.catalog import Encoding, Listing
from shared.intents.intent import Intent
from shared.text.tokens import Counter
from shared.upstream.target import HttpTarget, Target
from tests.support.builders import up, write_path
from tests.support.hostile import scripts
from tests.support.hostile.messages import Message, Pages, as_dense_as_allowed, one_page, tool
from tests.support.hostile.processes import scripted_stdio
from tests.support.hostile.scripted_http import scripted_http
from tests.support.present import present
from tests.support.waiting import eventually
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking
from workers.fetch.turns import FetchInterrupted, LargePayloadSlots
from workers.ingest import Ingested, reconcile

pytestmark = pytest.mark.process

LIMITS = Limits(timeout_s=60)


class Fleet:
    """Servers by id, one slot for all of their large lists, and reconciliations that wait before counting.

    `listed` names the servers whose list is complete, `refused` those that had to wait for a slot.
    """

    def __init__(self, directory: Path, targets: dict[str, Target]) -> None:
        self.may_count = threading.Event()
        self.listed: list[str] = []
        self.refused: set[str] = set()
        self._targets = targets
        self._slots = LargePayloadSlots(1)
        held: dict[Encoding, Counter] = {"cl100k_base": self._count}
        self._deps = replace(write_path(directory).deps, slots=self._slots, list_server=self._list, counters=held)

    def reconcile(self, server_id: str) -> Ingested | None:
        self._deps.intents.record(up(server_id), due_in_s=60)
        return reconcile(server_id, self._deps)

    def _list(self, intent: Intent) -> Listing:
        server_id = intent.server_id
        acquire = partial(self._acquire_slot, server_id)
        listing = fetch_tools_blocking(server_id, self._targets[server_id], LIMITS, acquire)
        self.listed.append(server_id)
        return listing

    def _acquire_slot(self, server_id: str) -> bool:
        taken = self._slots.try_acquire(server_id)
        if not taken:
            self.refused.add(server_id)
        return taken

    def _count(self, text: str) -> int:
        assert "small" in text or self.may_count.wait(60)
        return len(text)


def many_pages(cursor: str | None) -> Message:
    """Four pages of 100 KB."""
    start = int(cursor or 0)
    tools = [tool(f"tool_{number}", "x" * 1_000) for number in range(start, start + 100)]
    return {"tools": tools, **({"nextCursor": str(start + 100)} if start < 300 else {})}


LARGE: dict[str, Pages] = {
    "large page": one_page(*(tool(f"tool_{number}", "x" * 1_000) for number in range(400))),
    "many pages": many_pages,
    "dense page": as_dense_as_allowed,
}


@pytest.fixture(params=[*LARGE, "stdio"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Fleet]:
    with ExitStack() as servers:
        small = servers.enter_context(scripted_http(scripts.plays(one_page(tool("small")))))
        targets: dict[str, Target] = {"small": HttpTarget(small.url)}
        for server_id in ("first", "second"):
            if request.param == "stdio":
                targets[server_id] = scripted_stdio("as_dense_as_allowed")
            else:
                large = servers.enter_context(scripted_http(scripts.plays(LARGE[str(request.param)])))
                targets[server_id] = HttpTarget(large.url)
        yield Fleet(tmp_path, targets)


def test_the_second_large_list_waits_until_the_first_is_written_and_a_small_one_does_not(fleet: Fleet) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fleet.reconcile, "first")
        eventually(lambda: fleet.listed == ["first"])
        second = pool.submit(fleet.reconcile, "second")
        eventually(lambda: fleet.refused == {"second"}, what="the second list's wait")

        small = fleet.reconcile("small")

        assert small is not None
        assert fleet.listed == ["first", "small"]
        assert not first.done()
        fleet.may_count.set()
        assert first.result(timeout=60) == second.result(timeout=60)
        assert fleet.listed == ["first", "small", "second"]


def test_a_large_list_without_a_slot_is_postponed_and_counts_as_no_failure(tmp_path: Path) -> None:
    path = write_path(tmp_path)
    large = scripted_stdio("as_dense_as_allowed")

    def list_server(_intent: Intent) -> Listing:
        return fetch_tools_blocking("s", large, LIMITS, lambda: False, wait_at_most_s=0.2)

    path.deps.intents.record(up("s"), due_in_s=60)
    with pytest.raises(FetchInterrupted, match=r"^s: interrupted, since no slot for a large list became free$"):
        reconcile("s", replace(path.deps, list_server=list_server))

    intent = present(path.deps.intents.intent("s"))
    assert (intent.failures, intent.attempts, intent.is_lagging) == (0, 0, True)
