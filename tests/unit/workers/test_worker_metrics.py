"""What the write side counts, on the real write path with in-memory neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import EventInvalid, IndexUnavailable, IntentsUnavailable, LeaseHeld, ServerTimeout
from shared.intents.intent import Backlog
from tests.support.builders import WritePath, changed, definition, listing, up, write_path
from tests.support.metrics import shown
from workers.emit import Emitter
from workers.ingest import reconcile
from workers.metrics import BacklogGauges


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    return write_path(tmp_path)


def counted_reconcile(path: WritePath, server_id: str) -> None:
    with path.deps.metrics.reconcile() as done:
        done(reconcile(server_id, path.deps))


def reconcile_offered(path: WritePath, *offered: str) -> None:
    path.world.servers["s"] = listing(*(definition(*name.split("=")) for name in offered))
    path.deps.intents.record(up(), due_in_s=60)
    counted_reconcile(path, "s")


def metrics(path: WritePath) -> dict[str, float]:
    return shown(path.deps.metrics.registry)


def test_a_reconciliation_is_counted_by_its_changes_and_timed_by_its_stages(path: WritePath) -> None:
    reconcile_offered(path, "read", "write", "list")
    reconcile_offered(path, "read", "write", "list")
    reconcile_offered(path, "read", "write=does another thing", "new")

    found = metrics(path)
    assert found['toolscale_reconciles_total{result="changed"}'] == 2
    assert found['toolscale_reconciles_total{result="unchanged"}'] == 1
    assert found["toolscale_reconcile_seconds_count"] == 3
    changes = {change: found[f'toolscale_tool_changes_total{{change="{change}"}}'] for change in _CHANGES}
    assert changes == {"added": 4, "changed": 1, "removed": 1}
    stages = {stage: found[f'toolscale_stage_seconds_count{{stage="{stage}"}}'] for stage in _STAGES}
    assert path.deps.metrics.steps == sum(stages.values())
    assert stages == {"fetch": 3, "count": 2, "embed": 2, "upsert": 2}


_CHANGES = ("added", "changed", "removed")
_STAGES = ("fetch", "count", "embed", "upsert")


def test_a_reconciliation_without_a_commit_is_counted_by_its_reason(path: WritePath) -> None:
    path.world.servers["s"] = ServerTimeout("s", "silent")
    path.deps.intents.record(up(), due_in_s=60)

    with pytest.raises(ServerTimeout):
        counted_reconcile(path, "s")
    with path.deps.intents.lease("s"), pytest.raises(LeaseHeld):
        counted_reconcile(path, "s")
    with pytest.raises(IndexUnavailable), path.deps.metrics.reconcile():
        raise IndexUnavailable("away")
    counted_reconcile(path, "nobody")

    found = metrics(path)
    results = ("listing_failed", "held", "failed", "not_due")
    assert [found[f'toolscale_reconciles_total{{result="{result}"}}'] for result in results] == [1, 1, 1, 1]
    assert found['toolscale_stage_seconds_count{stage="fetch"}'] == 1
    assert found["toolscale_reconcile_seconds_count"] == 0


def test_events_are_counted_by_type_and_by_what_became_of_them(path: WritePath) -> None:
    intents = path.deps.intents
    emitter = Emitter(intents, lambda _: None, 60, path.deps.metrics)
    intents.mark_complete()

    emitter.emit(up())
    for refused in (changed("nobody").model_dump(mode="json"), {"type": "x" * 500}):
        with pytest.raises(EventInvalid):
            emitter.accept(refused)
    intents.close()
    with pytest.raises(IntentsUnavailable):
        emitter.emit(up())

    assert {name: value for name, value in metrics(path).items() if name.startswith("toolscale_events_total")} == {
        'toolscale_events_total{outcome="recorded",type="up"}': 1,
        'toolscale_events_total{outcome="refused",type="changed"}': 1,
        'toolscale_events_total{outcome="refused",type="unknown"}': 1,
        'toolscale_events_total{outcome="not_recorded",type="up"}': 1,
    }


def test_a_store_that_does_not_answer_is_shown_and_hides_no_other_metric(path: WritePath) -> None:
    registry, answers = path.deps.metrics.registry, True

    def backlog() -> Backlog:
        if not answers:
            raise IntentsUnavailable("away")
        return Backlog(servers=3, due=2, overdue_s=1.5, dead_letters=1)

    registry.register(BacklogGauges(backlog))
    up_now = shown(registry)
    answers = False
    down_now = shown(registry)

    assert (up_now["toolscale_intents_up"], up_now["toolscale_reconcile_overdue_seconds"]) == (1, 1.5)
    assert down_now["toolscale_intents_up"] == 0
    assert "toolscale_reconciles_due" not in down_now
    assert "toolscale_sweeps_total" in down_now
