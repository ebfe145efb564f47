from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shared.catalog import Listing, Scope
from shared.errors import ConfigInvalid, IndexUnavailable, ServerTimeout
from shared.events import ServerEvent
from shared.intents.intent import Intent
from tests.support.builders import RETRY_POLICY, WritePath, changed, definition, down, listing, up, write_path
from tests.support.present import present
from workers.fetch.turns import FetchInterrupted
from workers.indexing.records import FailurePolicy
from workers.ingest import reconcile

SILENT = ServerTimeout("s", "no complete answer within 30 s")


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    """A write path with one good server, that is quarantined after three failures."""
    path = write_path(tmp_path)
    path = replace(path, deps=replace(path.deps, failure_policy=FailurePolicy(quarantine_after=3)))
    path.world.servers["s"] = listing(definition("a"))
    path.deps.intents.record(up(), due_in_s=60)
    reconcile("s", path.deps)
    return path


def reconcile_times(path: WritePath, times: int = 1) -> None:
    path.deps.intents.record(changed(), due_in_s=60)
    for _ in range(times):
        try:
            reconcile("s", path.deps)
        except ServerTimeout:
            continue


def status(path: WritePath) -> str:
    return present(path.index.server("s")).status


def found(path: WritePath) -> int:
    return len(path.index.tools(Scope(), limit=10).tools)


def test_one_failure_keeps_the_last_good_tools_and_marks_them_stale(path: WritePath) -> None:
    path.world.servers["s"] = SILENT

    reconcile_times(path)

    record = present(path.index.server("s"))
    assert (record.status, record.failures, found(path)) == ("running", 1, 1)
    assert record.next_reconcile_at is not None
    assert record.stale_since is not None
    assert record.last_error == str(SILENT)
    reconcile_times(path)
    assert present(path.index.server("s")).stale_since == record.stale_since, "since the first failure"


def test_a_server_that_keeps_failing_is_quarantined_and_its_tools_hidden_and_kept(path: WritePath) -> None:
    path.world.servers["s"] = SILENT

    reconcile_times(path, times=3)

    assert (status(path), found(path)) == ("quarantined", 0)
    assert path.tool_names() == {"a"}


def test_the_first_good_list_brings_a_quarantined_server_back_and_embeds_nothing(path: WritePath) -> None:
    embedded = len(path.embedder.embedded_texts)
    path.world.servers["s"] = SILENT
    reconcile_times(path, times=3)

    path.world.servers["s"] = listing(definition("a"))
    reconcile_times(path)

    record = present(path.index.server("s"))
    assert (record.status, record.failures, record.stale_since, found(path)) == ("running", 0, None, 1)
    assert len(path.embedder.embedded_texts) == embedded


def test_a_server_that_was_silent_for_too_long_is_stopped_and_not_asked_before_it_is_announced(path: WritePath) -> None:
    path = replace(
        path, deps=replace(path.deps, failure_policy=FailurePolicy(quarantine_after=100, give_up_after_s=0.0))
    )
    path.world.servers["s"] = SILENT
    reconcile_times(path, times=2)

    intent = present(path.deps.intents.intent("s"))
    assert (status(path), intent.is_lagging, intent.due_at) == ("stopped", False, None)
    path.world.servers["s"] = listing(definition("a"))
    path.deps.intents.record(up(), due_in_s=60)
    reconcile("s", path.deps)
    assert (status(path), found(path)) == ("running", 1)


def test_the_clock_of_the_store_measures_the_silence_of_a_server(path: WritePath) -> None:
    path.clock.ahead_s = -100_000.0  # so that this process's own clock is a day ahead of it
    path.deps.intents.record(down(), due_in_s=60)
    path.deps.intents.record(up(), due_in_s=60)
    reconcile("s", path.deps)
    path.world.servers["s"] = SILENT
    reconcile_times(path, times=2)
    after_two = status(path)

    path.clock.ahead_s += path.deps.failure_policy.give_up_after_s
    reconcile_times(path)

    assert (after_two, status(path)) == ("running", "stopped")


def test_a_server_that_is_announced_after_a_long_absence_is_given_time_to_be_reached(path: WritePath) -> None:
    path.world.servers["s"] = SILENT
    reconcile_times(path)
    path.deps.intents.record(down(), due_in_s=60)
    reconcile("s", path.deps)
    long_ago = present(path.index.server("s"))
    path.index.put_server(long_ago.model_copy(update={"stale_since": 1.0}))

    path.deps.intents.record(up(), due_in_s=60)
    with pytest.raises(ServerTimeout):
        reconcile("s", path.deps)

    intent = present(path.deps.intents.intent("s"))
    assert intent.is_lagging
    assert intent.due_at is not None


def test_a_group_that_is_taken_away_loses_sight_of_a_server_that_fails_too(path: WritePath) -> None:
    path.deps.intents.record(up(groups=["dev", "ops"]), due_in_s=60)
    reconcile("s", path.deps)
    path.world.servers["s"] = SILENT

    path.deps.intents.record(up(groups=["ops"]), due_in_s=60)
    with pytest.raises(ServerTimeout):
        reconcile("s", path.deps)

    assert path.index.tools(Scope(groups=frozenset({"dev"})), limit=10).tools == []
    assert len(path.index.tools(Scope(groups=frozenset({"ops"})), limit=10).tools) == 1


def test_an_unavailable_index_counts_as_no_failure_of_servers(path: WritePath) -> None:
    path.deps.intents.record(changed(), due_in_s=60)
    path.index.is_down = True
    for _ in range(20):
        with pytest.raises(IndexUnavailable):
            reconcile("s", path.deps)
    path.index.is_down = False

    intent = present(path.deps.intents.intent("s"))
    assert (intent.attempts, intent.failures, intent.is_lagging) == (0, 0, True)
    assert intent.due_at is not None
    reconcile("s", path.deps)
    assert (status(path), found(path)) == ("running", 1)


@pytest.mark.parametrize("trouble", [ConfigInvalid("QDRANT_API_KEY: refused"), OSError(24, "EMFILE"), MemoryError()])
def test_trouble_of_our_own_never_parks_a_server(path: WritePath, trouble: Exception) -> None:
    def troubled(_: Intent) -> Listing:
        raise trouble

    ill = replace(path.deps, list_server=troubled)
    path.deps.intents.record(changed(), due_in_s=60)
    for _ in range(path.deps.failure_policy.quarantine_after + 1):
        with pytest.raises(type(trouble)):
            reconcile("s", ill)

    reconcile("s", path.deps)

    assert (status(path), found(path)) == ("running", 1)


def test_internal_failures_are_retried_ever_later_until_a_commit(path: WritePath) -> None:
    intents = path.deps.intents
    intents.record(changed(), due_in_s=60)
    waits: list[float] = []
    for _ in range(8):
        assert intents.begin("s")
        asked_at = path.clock()
        waits.append((intents.retry_later("s").due_at or 0.0) - asked_at)

    intents.commit("s", 2)
    intents.record(changed(), due_in_s=60)
    intents.begin("s")
    afterwards = intents.retry_later("s")

    assert max(waits[:1]) < 1.1 * RETRY_POLICY.first_s
    assert min(waits[-2:]) >= 0.5 * RETRY_POLICY.longest_s
    assert len(set(waits)) == len(waits)
    assert (afterwards.due_at or 0.0) - path.clock() < 1.1 * RETRY_POLICY.first_s


def asked_by_a_sweep(path: WritePath) -> bool:
    """Let the longest wait and the quarter more of a parked server pass; return whether a sweep then asks for it."""
    path.clock.ahead_s += 1.25 * RETRY_POLICY.longest_s
    return path.deps.intents.claim_due(10) == ["s"]


def never_ends(path: WritePath, times: int = 3) -> None:
    """Begin reconciliations that kill their workers."""
    path.deps.intents.record(changed(), due_in_s=60)
    for _ in range(times):
        assert path.deps.intents.begin("s")
        assert asked_by_a_sweep(path)


@pytest.fixture
def parked(path: WritePath) -> WritePath:
    """The write path after the server's reconciliations killed three workers."""
    never_ends(path)
    reconcile("s", path.deps)
    path.world.listed.clear()
    return path


def test_a_server_that_kills_its_workers_is_quarantined_and_not_reconciled(parked: WritePath) -> None:
    record = present(parked.index.server("s"))
    intent = present(parked.deps.intents.intent("s"))
    assert (record.status, intent.parked, parked.world.listed) == ("quarantined", True, [])
    assert record.last_error == "s: 3 reconciliations in a row did not end; parked, and retried rarely"


def test_a_parked_server_that_killed_no_worker_is_released_by_a_retry(parked: WritePath) -> None:
    assert asked_by_a_sweep(parked)
    reconcile("s", parked.deps)

    intent = present(parked.deps.intents.intent("s"))
    assert (status(parked), found(parked), intent.parked, intent.attempts) == ("running", 1, False, 0)


def test_a_reconciliation_interrupted_by_a_shutdown_raises_no_suspicion(path: WritePath) -> None:
    def interrupted(intent: Intent) -> Listing:
        raise FetchInterrupted(intent.server_id)

    ending = replace(path.deps, list_server=interrupted)
    path.deps.intents.record(changed(), due_in_s=60)
    for _ in range(5):
        with pytest.raises(FetchInterrupted):
            reconcile("s", ending)

    intent = present(path.deps.intents.intent("s"))
    assert (intent.attempts, intent.is_lagging) == (0, True)


def test_a_storm_of_changes_costs_few_of_the_workers_that_a_server_kills(path: WritePath) -> None:
    assert 0 < reconciliations_in_a_storm(path) <= 3


def test_a_storm_of_changes_costs_one_worker_more_when_the_server_is_parked(parked: WritePath) -> None:
    assert reconciliations_in_a_storm(parked) == 1


def reconciliations_in_a_storm(path: WritePath) -> int:
    """Return how many reconciliations begin, and never end, in a storm of changes within one wait."""
    begun = 0
    for _ in range(30):
        path.deps.intents.record(changed(), due_in_s=60)
        begun += path.deps.intents.begin("s") is not None
    return begun


@pytest.mark.parametrize("news", [[changed()], [down(), up()], [up(url="http://127.0.0.1:10/mcp")]])
def test_a_parked_server_is_retried_at_once_after_an_event_with_a_change(
    parked: WritePath, news: list[ServerEvent]
) -> None:
    for event in news:
        assert parked.deps.intents.record(event, due_in_s=60).needs_message
        reconcile("s", parked.deps)

    assert (status(parked), found(parked)) == ("running", 1)


def test_interrupted_parking_is_finished_by_the_next_reconciliation(path: WritePath) -> None:
    never_ends(path)
    path.index.is_down = True
    with pytest.raises(IndexUnavailable):
        reconcile("s", path.deps)
    path.index.is_down = False

    assert asked_by_a_sweep(path)
    path.world.listed.clear()
    reconcile("s", path.deps)

    assert (status(path), path.world.listed) == ("quarantined", [])
