from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import ServerTimeout
from shared.intents.intent import Intent
from tests.support.builders import WritePath, changed, definition, down, listing, up, write_path
from tests.support.present import present
from workers.ingest import reconcile
from workers.sources.announcer import SourceAnnouncer
from workers.upkeep.recover import restore_if_lost


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    """A write path whose index knows a running, a stopped and a failing server, and whose intents were lost."""
    path = write_path(tmp_path / "before")
    path.world.servers = {"runs": listing(definition("a")), "stopped": listing(), "fails": ServerTimeout("fails", "")}
    for event in (up("runs", ["dev"]), up("stopped"), down("stopped"), changed("runs"), up("fails")):
        path.deps.intents.record(event, due_in_s=60)
    for server_id in ("runs", "stopped"):
        reconcile(server_id, path.deps)
    with pytest.raises(ServerTimeout):
        reconcile("fails", path.deps)
    return replace(path, deps=replace(path.deps, intents=write_path(tmp_path / "after").deps.intents))


def intent(path: WritePath, server_id: str) -> Intent:
    return present(path.deps.intents.intent(server_id))


def test_every_server_of_the_index_is_known_again_as_it_was(path: WritePath) -> None:
    restore_if_lost(path.deps.intents, path.deps.index)

    assert {recorded.server_id: recorded.status for recorded in path.deps.intents.intents()} == {
        "runs": "running", "stopped": "stopped", "fails": "running",
    }  # fmt: skip
    assert intent(path, "runs").announcement == up("runs", ["dev"]).data
    assert intent(path, "fails").failures == 1
    record = present(path.deps.index.server("runs"))
    assert intent(path, "runs").catalogue_id == record.catalogue_id != ""


def test_a_restored_source_takes_down_its_removed_servers(path: WritePath) -> None:
    (announced,) = {up("any").source}
    restore_if_lost(path.deps.intents, path.deps.index)
    announcer = SourceAnnouncer(
        announced, path.deps.intents, lambda event: path.deps.intents.record(event, due_in_s=1).intent
    )

    announcer.announce_differences([], kept=["fails"])

    assert {recorded.server_id: recorded.status for recorded in path.deps.intents.intents()} == {
        "runs": "stopped", "stopped": "stopped", "fails": "running",
    }  # fmt: skip


def test_every_server_is_reconciled_at_once_but_a_stopped_one_is_not_listed(path: WritePath) -> None:
    restore_if_lost(path.deps.intents, path.deps.index)
    path.world.servers["stopped"] = ServerTimeout("stopped", "")

    assert sorted(path.deps.intents.claim_due(10)) == ["fails", "runs", "stopped"]
    reconcile("stopped", path.deps)
    assert intent(path, "stopped").due_at is None
    assert present(path.deps.index.server("stopped")).status == "stopped"


def test_an_event_since_the_loss_is_not_overwritten(path: WritePath) -> None:
    path.deps.intents.record(up("stopped", ["back"]), due_in_s=60)

    restore_if_lost(path.deps.intents, path.deps.index)

    found = intent(path, "stopped")
    assert (found.status, found.announcement.groups) == ("running", frozenset({"back"}))


def test_a_store_that_lost_nothing_is_left_alone(path: WritePath) -> None:
    path.deps.intents.mark_complete()

    restore_if_lost(path.deps.intents, path.deps.index)

    assert list(path.deps.intents.intents()) == []
