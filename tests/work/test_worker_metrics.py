"""What the write side counts, on the real write path with in-memory neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import EventInvalid, IndexUnavailable, IntentsUnavailable, LeaseHeld, ServerTimeout
from shared.intents.intent import Backlog
from tests.support.builders import WritePath, changed, definition, listing, up, write_path
from tests.support.metrics import counted, shown
from workers.emit import Emitter
from workers.ingest import reconcile
from workers.monitoring.metrics import BacklogGauges, Stages, counted_reconcile


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    return write_path(tmp_path)


def reconcile_counted(path: WritePath, server_id: str) -> None:
    with counted_reconcile() as done:
        done(reconcile(server_id, path.deps))


def reconcile_offered(path: WritePath, *offered: str) -> None:
    path.world.servers["s"] = listing(*(definition(*name.split("=")) for name in offered))
    path.deps.intents.record(up(), due_in_s=60)
    reconcile_counted(path, "s")


def results(samples: dict[str, float]) -> dict[str, float]:
    """Return the reconciliations by result, without those that there were none of."""
    found = {name: value for name, value in samples.items() if name.startswith("toolscale_reconciles_total{") and value}
    return {name.split('"')[1]: value for name, value in found.items()}


def test_a_reconciliation_is_counted_by_its_result_and_each_of_its_stages_is_progress(path: WritePath) -> None:
    ended_before = Stages.ended
    with counted() as found:
        reconcile_offered(path, "read", "write", "list")
        reconcile_offered(path, "read", "write", "list")
        reconcile_offered(path, "read", "write=does another thing", "list")
        reconcile_offered(path, "read")

    assert results(found) == {"changed": 3, "unchanged": 1}
    assert found["toolscale_reconcile_seconds_count"] == 4
    fetched, counted_embedded_and_written = 4, 2
    assert Stages.ended - ended_before == fetched + 3 * counted_embedded_and_written


def test_a_reconciliation_without_a_commit_is_counted_by_its_reason(path: WritePath) -> None:
    path.world.servers["s"] = ServerTimeout("s", "silent")
    path.deps.intents.record(up(), due_in_s=60)

    with counted() as found:
        with pytest.raises(ServerTimeout):
            reconcile_counted(path, "s")
        with path.deps.intents.lease("s"), pytest.raises(LeaseHeld):
            reconcile_counted(path, "s")
        with pytest.raises(IndexUnavailable), counted_reconcile():
            raise IndexUnavailable("away")
        reconcile_counted(path, "nobody")

    assert results(found) == {"listing_failed": 1, "held": 1, "failed": 1, "not_due": 1}
    assert found["toolscale_reconcile_seconds_count"] == 0


def test_events_are_counted_by_what_became_of_them(path: WritePath) -> None:
    intents = path.deps.intents
    emitter = Emitter(intents, lambda _: None, 60)
    intents.mark_complete()

    with counted() as found:
        emitter.emit(up())
        for refused in (changed("nobody").model_dump(mode="json"), {"type": "x" * 500}):
            with pytest.raises(EventInvalid):
                emitter.accept(refused)
        intents.close()
        with pytest.raises(IntentsUnavailable):
            emitter.emit(up())

    assert {name: value for name, value in found.items() if name.startswith("toolscale_events_total")} == {
        'toolscale_events_total{outcome="recorded"}': 1,
        'toolscale_events_total{outcome="refused"}': 2,
        'toolscale_events_total{outcome="not_recorded"}': 1,
    }


def test_a_store_that_does_not_answer_is_shown_and_hides_no_other_metric() -> None:
    answers = True

    def backlog() -> Backlog:
        if not answers:
            raise IntentsUnavailable("away")
        return Backlog(servers=3, due=2, overdue_s=1.5, dead_letters=1)

    up_now = shown(BacklogGauges(backlog))
    answers = False
    down_now = shown(BacklogGauges(backlog))

    assert (up_now["toolscale_intents_up"], up_now["toolscale_reconcile_overdue_seconds"]) == (1, 1.5)
    assert down_now["toolscale_intents_up"] == 0
    assert "toolscale_reconciles_due" not in down_now
    assert 'toolscale_events_total{outcome="recorded"}' in down_now
