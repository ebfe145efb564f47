from __future__ import annotations

import threading
from collections.abc import Callable

import anyio
import pytest

from query.records import EVERYTHING_EVERY_S, FEW, OVERLAP_EVERY_S, Ledger, run_behind
from query.turns import MOST, run_in_thread
from shared.catalog import FEATURES_VERSION, Endpoint, Scope, Selection, ServerRecord
from tests.support.fakes import FakeIndex, embedded, make_tool
from tests.support.waiting import eventually

NOW_US = 1_700_000_000_000_000


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class WatchedIndex(FakeIndex):
    """Remembers how many records each read returned, and how many revisions."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []
        self.compared: list[int] = []

    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        records = super().servers(newer_than=newer_than)
        self.read.append(len(records))
        return records

    def revisions(self, *, newer_than: int = 0) -> dict[str, int]:
        revisions = {server.server_id: server.revision for server in super().servers(newer_than=newer_than)}
        self.compared.append(len(revisions))
        return revisions

    def lose(self, server_id: str) -> None:
        del self._records[server_id]


class SlowIndex(WatchedIndex):
    """Something happens between its next reading and its answer."""

    meanwhile: Callable[[], None] | None = None

    def after_next(self, meanwhile: Callable[[], object]) -> None:
        """Let it happen in the reading after the next."""
        self.meanwhile = lambda: setattr(self, "meanwhile", meanwhile)

    def servers(self, *, newer_than: int = 0) -> list[ServerRecord]:
        records = super().servers(newer_than=newer_than)
        self._happen()
        return records

    def revisions(self, *, newer_than: int = 0) -> dict[str, int]:
        revisions = super().revisions(newer_than=newer_than)
        self._happen()
        return revisions

    def _happen(self) -> None:
        if self.meanwhile:
            happens, self.meanwhile = self.meanwhile, None
            happens()


def record(server_id: str, revision: int, tokens: int = 10, uncounted: tuple[str, ...] = ()) -> ServerRecord:
    return ServerRecord(
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
        server_id=server_id,
        endpoint=Endpoint(),
        tool_count=1,
        tokens={"cl100k_base": tokens},
        uncounted={"cl100k_base": uncounted},
        revision=revision,
    )


def tokens(ledger: Ledger) -> int:
    return ledger.baseline(Scope(), "cl100k_base").tokens


def test_only_what_is_new_is_read_once_all_is_known() -> None:
    index = WatchedIndex()
    ledger = Ledger(index, clock_s=Clock())
    for i in range(100):
        index.put_server(record(f"s{i}", NOW_US + i))
    tokens(ledger)

    index.put_server(record("s7", NOW_US + 200))
    tokens(ledger)
    tokens(ledger)

    assert index.read == [100, 1, 0]


def test_requests_that_wait_for_a_turn_share_the_next_read() -> None:
    index = SlowIndex()
    ledger = Ledger(index)
    index.put_server(record("a", NOW_US))
    tokens(ledger)
    index.read.clear()
    begun = threading.Semaphore(0)

    async def ask(read: Callable[[], int]) -> None:
        assert await run_in_thread("caller", read) == 10

    def wait_until_all_began() -> int:
        assert begun.acquire(timeout=60)
        return tokens(ledger)

    async def ask_all() -> None:
        async with anyio.create_task_group() as requests:
            for _ in range(MOST):
                requests.start_soon(ask, wait_until_all_began)
            for _ in range(20):
                requests.start_soon(ask, lambda: tokens(ledger))
            await anyio.wait_all_tasks_blocked()
            begun.release(MOST)

    anyio.run(ask_all)

    assert len(index.read) == 1


def test_a_request_that_began_after_a_write_does_not_share_a_read_of_before() -> None:
    index, seen = SlowIndex(), list[int]()
    ledger = Ledger(index)
    index.put_server(record("a", NOW_US))
    tokens(ledger)
    asking = threading.Thread(target=lambda: seen.append(tokens(ledger)))

    def meanwhile() -> None:
        index.put_server(record("b", NOW_US + 1))
        asking.start()

    index.meanwhile = meanwhile
    tokens(ledger)
    asking.join(timeout=60)

    assert seen == [20]


@pytest.mark.parametrize("pause_s", [OVERLAP_EVERY_S, EVERYTHING_EVERY_S])
def test_a_comparison_delays_no_request(pause_s: float) -> None:
    index, clock, begun, asked = SlowIndex(), Clock(), threading.Event(), threading.Event()
    ledger = Ledger(index, clock, run_behind)
    index.put_server(record("fast", NOW_US))
    tokens(ledger)
    index.put_server(record("slow", NOW_US - 1))
    clock.now_s += pause_s

    def wait() -> None:
        begun.set()
        asked.wait(60)

    index.after_next(wait)  # the reading of the comparison
    assert tokens(ledger) == 10
    assert begun.wait(60)
    index.put_server(record("new", NOW_US + 1))
    assert tokens(ledger) == 20
    asked.set()

    eventually(lambda: tokens(ledger) == 30)


def test_a_comparison_that_failed_in_its_thread_is_repeated() -> None:
    index, clock = SlowIndex(), Clock()
    ledger = Ledger(index, clock, run_behind)
    index.put_server(record("fast", NOW_US))
    tokens(ledger)
    index.put_server(record("slow", NOW_US - 1))
    clock.now_s += OVERLAP_EVERY_S

    index.meanwhile = lambda: setattr(index, "is_down", True)
    assert tokens(ledger) == 10
    eventually(lambda: "toolscale ledger" not in {thread.name for thread in threading.enumerate()})
    index.is_down = False

    eventually(lambda: tokens(ledger) == 20)


def test_comparing_reads_no_record_that_is_known() -> None:
    index, clock = WatchedIndex(), Clock()
    ledger = Ledger(index, clock_s=clock)
    for i in range(100):
        index.put_server(record(f"s{i}", NOW_US + i))
    tokens(ledger)

    index.put_server(record("late", NOW_US - 1))
    clock.now_s += OVERLAP_EVERY_S
    tokens(ledger)
    clock.now_s += EVERYTHING_EVERY_S
    assert tokens(ledger) == 1010

    assert (index.read, index.compared) == ([100, 0, 0], [101, 101])


@pytest.mark.parametrize("servers", [1, FEW + 1])
def test_records_that_went_back_to_a_lower_revision_are_believed(servers: int) -> None:
    index, clock = FakeIndex(), Clock()
    ledger = Ledger(index, clock_s=clock)
    for i in range(servers):
        index.put_server(record(f"s{i}", NOW_US, tokens=10))
    tokens(ledger)

    for i in range(servers):
        index.put_server(record(f"s{i}", 1, tokens=30))
    clock.now_s += EVERYTHING_EVERY_S

    assert tokens(ledger) == 30 * servers


def test_a_server_that_the_index_lost_is_in_no_sum_once_all_were_compared() -> None:
    index, clock = WatchedIndex(), Clock()
    ledger = Ledger(index, clock_s=clock)
    index.put_server(record("a", NOW_US))
    index.put_server(record("lost", NOW_US))
    tokens(ledger)

    index.lose("lost")
    clock.now_s += EVERYTHING_EVERY_S

    assert tokens(ledger) == 10


def test_what_a_record_says_under_its_old_revision_is_known_within_a_minute() -> None:
    index, clock = FakeIndex(), Clock()
    ledger = Ledger(index, clock_s=clock)
    before = record("a", NOW_US)
    index.put_server(before)
    assert ledger.known(Scope()) == [before]

    after = before.model_copy(update={"last_listed_at": 2.0})
    index.put_server(after)
    assert ledger.known(Scope()) == [before]
    clock.now_s += EVERYTHING_EVERY_S

    assert ledger.known(Scope()) == [after]


def test_what_was_learnt_while_records_were_read_again_is_not_taken_back() -> None:
    index, clock = SlowIndex(), Clock()
    ledger = Ledger(index, clock_s=clock)
    for server in ("a", "b", "lost"):
        index.put_server(record(server, NOW_US))
    tokens(ledger)
    clock.now_s += EVERYTHING_EVERY_S
    tokens(ledger)

    def meanwhile() -> None:
        index.put_server(record("a", NOW_US + 1, tokens=30))
        index.put_server(record("c", NOW_US + 1))
        index.lose("lost")
        clock.now_s += EVERYTHING_EVERY_S
        assert tokens(ledger) == 50

    index.after_next(meanwhile)
    seen = {known.server_id: known.tokens["cl100k_base"] for known in ledger.known(Scope())}

    assert seen == {"a": 30, "b": 10, "c": 10}


def test_threads_that_ask_while_records_are_written_never_see_less_than_was_there_before() -> None:
    index = FakeIndex()
    ledger = Ledger(index)
    written = threading.Event()
    seen: list[list[int]] = [[], []]

    def ask(into: list[int]) -> None:
        while not written.is_set():
            into.append(tokens(ledger))

    askers = [threading.Thread(target=ask, args=(into,)) for into in seen]
    for asker in askers:
        asker.start()
    for i in range(500):
        index.put_server(record(f"s{i}", NOW_US + i, tokens=1))
    written.set()
    for asker in askers:
        asker.join(timeout=60)

    assert all(sums == sorted(sums) for sums in seen)
    assert tokens(ledger) == 500


def test_a_server_that_was_announced_and_not_listed_yet_is_counted_as_coming_and_not_in_the_sum() -> None:
    index = FakeIndex()
    index.put_server(record("listed", NOW_US, tokens=10))
    coming = ServerRecord(server_id="coming", endpoint=Endpoint(), revision=NOW_US + 1)
    index.put_server(coming)
    index.put_server(coming.model_copy(update={"server_id": "failing", "stale_since": 1.0}))
    ledger = Ledger(index)

    assert ledger.baseline(Scope(), "cl100k_base").tokens == 10
    assert ledger.being_listed(Scope())[0] == 1


def test_sums_by_an_older_recipe_are_not_told_as_if_they_were_true_now() -> None:
    index = FakeIndex()
    index.put_server(record("a", NOW_US, tokens=10).model_copy(update={"features_version": "an older one"}))

    assert Ledger(index).baseline(Scope(), "cl100k_base").tokens == 0


def test_what_the_servers_cost_together_is_the_baseline_whether_they_are_divided_or_not() -> None:
    index = FakeIndex()
    for server, count in (("a", 10), ("b", 25)):
        index.upsert([embedded(make_tool(server, name, tokens=count)) for name in ("one", "two")])
        index.put_server(record(server, NOW_US, tokens=2 * count))
    ledger = Ledger(index)

    for scope in (Scope(), Scope(within=Selection(servers=frozenset({"a"}), tools=frozenset({"b:two"})))):
        costs = ledger.by_server(scope, "cl100k_base")
        assert costs.keys() == {"a", "b"}
        assert sum(cost.tokens for cost in costs.values()) == ledger.baseline(scope, "cl100k_base").tokens
        assert {server: ledger.of_servers({server}, scope, "cl100k_base") for server in costs} == costs
    assert costs["b"].tokens == 25


def test_statistics_of_all_tools_have_no_condition_while_every_server_is_running() -> None:
    index = FakeIndex()
    index.put_server(record("a", NOW_US))
    ledger = Ledger(index)
    ledger.refresh()
    whole, no_server = ledger.corpus(Scope()), Ledger(FakeIndex()).corpus(Scope())
    parts = [
        Scope(groups=frozenset({"team"})),
        Scope(servers=frozenset({"a"})),
        Scope(exclude=frozenset({"a:read"})),
        Scope(hidden=frozenset({"a"})),
        Scope(read_only=True),
        Scope(within=Selection(servers=frozenset({"a"}))),
    ]
    of_parts = [ledger.corpus(part) for part in parts]

    index.put_server(record("b", NOW_US + 1).model_copy(update={"status": "stopped"}))
    ledger.refresh()

    assert (whole, no_server, ledger.corpus(Scope())) == (Scope(status=None), Scope(), Scope())
    assert of_parts == parts
