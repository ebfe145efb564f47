from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from shared.catalog import EmbeddedTool, Listing, Scope
from shared.errors import IndexUnavailable, LeaseHeld, ServerTimeout
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from tests.chaos.interrupted import Leases, WithLeases
from tests.support.builders import WritePath, changed, definition, down, listing, up, write_path
from tests.support.fakes import asking, closest
from workers.ingest import BATCH, reconcile

EVERYTHING = Scope()


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    return write_path(tmp_path)


def look(path: WritePath, server_id: str = "s") -> None:
    reconcile(server_id, path.deps)


def ask(path: WritePath, *events: object) -> None:
    for event in events:
        path.deps.intents.record(event, due_in_s=60)  # type: ignore[arg-type]


def findable(path: WritePath) -> set[str]:
    return {tool.qualified_name for tool in closest(path.index, asking(), EVERYTHING, 100)}


def test_every_tool_of_a_server_that_came_up_is_found_and_counted(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("read_file"), definition("write_file"))
    ask(path, up(groups=["dev"]))

    look(path)

    record = path.index.server("s")
    assert findable(path) == {"s:read_file", "s:write_file"}
    assert record is not None
    assert (record.tool_count, record.groups, record.stale_since) == (2, frozenset({"dev"}), None)
    assert record.tokens["cl100k_base"] == path.index.token_sum(EVERYTHING, "cl100k_base").tokens > 0


def test_an_unchanged_server_is_neither_counted_nor_embedded_nor_written(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("read_file"), definition("write_file"))
    ask(path, up())
    look(path)
    counted, embedded, written = len(path.counted.texts), len(path.embedder.embedded_texts), len(path.index.upserted)

    ask(path, changed())
    look(path)

    assert path.world.listed == ["s", "s"]
    assert len(path.counted.texts) == counted
    assert len(path.embedder.embedded_texts) == embedded
    assert len(path.index.upserted) == written


def test_the_record_of_an_unchanged_server_keeps_its_revision_so_that_no_reader_reads_it_again(
    path: WritePath,
) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())
    look(path)
    before = path.index.server("s")

    ask(path, changed())
    look(path)

    after = path.index.server("s")
    assert before is not None
    assert after is not None
    assert after.revision == before.revision
    assert after.generation > before.generation


def test_sums_taken_by_another_recipe_are_taken_again(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())
    look(path)
    before = path.index.server("s")
    assert before is not None
    path.index.put_server(
        before.model_copy(update={"features_version": "an older one", "tokens": {"cl100k_base": 999}})
    )

    ask(path, changed())
    look(path)

    after = path.index.server("s")
    assert after is not None
    assert after.tokens == before.tokens


def test_only_the_tool_whose_definition_changed_is_written_again(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"), definition("b"))
    ask(path, up())
    look(path)

    path.world.servers["s"] = listing(definition("a"), definition("b", "does something else"))
    ask(path, changed())
    look(path)

    assert path.index.upserted == ["s:a", "s:b", "s:b"]


def test_a_tool_missing_from_the_new_list_is_removed(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"), definition("b"))
    ask(path, up())
    look(path)

    path.world.servers["s"] = listing(definition("a"))
    ask(path, changed())
    look(path)

    record = path.index.server("s")
    assert findable(path) == {"s:a"}
    assert record is not None
    assert record.tokens["cl100k_base"] == path.index.token_sum(EVERYTHING, "cl100k_base").tokens


def test_a_failed_listing_keeps_the_last_good_tools_and_marks_them_stale(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())
    look(path)

    path.world.servers["s"] = ServerTimeout("s", "no complete answer within 30 s")
    ask(path, changed())
    with pytest.raises(ServerTimeout):
        look(path)

    record = path.index.server("s")
    assert findable(path) == {"s:a"}
    assert record is not None
    assert record.stale_since is not None
    assert record.last_error == "s: no complete answer within 30 s"


def test_a_listing_that_succeeds_again_ends_the_staleness(path: WritePath) -> None:
    path.world.servers["s"] = ServerTimeout("s", "no complete answer within 30 s")
    ask(path, up())
    with pytest.raises(ServerTimeout):
        look(path)

    path.world.servers["s"] = listing(definition("a"))
    look(path)

    record = path.index.server("s")
    assert record is not None
    assert (record.stale_since, record.last_error, record.tool_count) == (None, None, 1)


def test_the_tools_of_a_server_that_is_down_are_neither_found_nor_counted_and_yet_kept(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())
    look(path)

    ask(path, down())
    look(path)

    assert findable(path) == set()
    assert path.index.token_sum(EVERYTHING, "cl100k_base").tokens == 0
    assert path.tool_names() == {"a"}


def test_the_intent_has_the_catalogue_id_of_the_last_listing(path: WritePath) -> None:
    path.world.servers = {"s": listing(definition("a")), "t": listing(definition("a"))}
    ask(path, up(), up("t"))
    for server in ("s", "t"):
        look(path, server)
    ask(path, down())
    look(path)

    ids = {intent.server_id: intent.catalogue_id for intent in path.deps.intents.intents()}
    record = path.index.server("t")
    assert record is not None
    assert ids == dict.fromkeys("st", record.catalogue_id)
    assert record.catalogue_id == f"{record.catalog_digest} {record.kind}"


def test_a_server_that_returns_unchanged_embeds_nothing(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())
    look(path)
    ask(path, down())
    look(path)

    ask(path, up())
    look(path)

    assert findable(path) == {"s:a"}
    assert path.embedder.embedded_texts == ["scripted: a", "a: does something"]


def test_other_groups_reach_the_tools_without_writing_them_again(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up(groups=["dev"]))
    look(path)

    ask(path, up(groups=["ops"]))
    look(path)

    ops = Scope(groups=frozenset({"ops"}))
    assert [tool.qualified_name for tool in closest(path.index, asking(), ops, 8)] == ["s:a"]
    assert len(path.index.upserted) == 1


def test_another_declared_name_is_another_text_and_embedded_again(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"), declared_name="first")
    ask(path, up())
    look(path)

    path.world.servers["s"] = listing(definition("a"), declared_name="second")
    ask(path, changed())
    look(path)

    texts = path.embedder.embedded_texts
    assert texts == ["first: a", "a: does something", "second: a", "a: does something"]


def test_a_tool_that_cannot_be_counted_is_found_all_the_same_and_named_in_the_record(tmp_path: Path) -> None:
    path = write_path(tmp_path, failing=frozenset({"cl100k_base"}))
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())

    look(path)

    record = path.index.server("s")
    assert findable(path) == {"s:a"}
    assert record is not None
    assert record.tokens["cl100k_base"] == 0
    assert record.uncounted["cl100k_base"] == ("a",)
    assert "heuristic" not in record.uncounted


def test_a_run_killed_between_tools_and_record_leaves_no_wrong_sum_behind(
    path: WritePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())
    look(path)
    path.world.servers["s"] = listing(definition("a"), definition("b"))
    ask(path, changed())
    with monkeypatch.context() as killed:
        killed.setattr(path.index, "put_server", _killed)
        with pytest.raises(IndexUnavailable):
            look(path)

    look(path)

    record = path.index.server("s")
    assert record is not None
    assert record.tokens["cl100k_base"] == path.index.token_sum(EVERYTHING, "cl100k_base").tokens
    assert record.tool_count == 2


def test_a_run_that_did_not_finish_is_asked_for_again(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())
    path.index.is_down = True
    with pytest.raises(IndexUnavailable):
        look(path)

    intent = path.deps.intents.intent("s")
    assert intent is not None
    assert intent.is_lagging
    assert intent.due_at is not None


def test_a_server_that_was_never_announced_is_not_reconciled(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())
    look(path)

    assert reconcile("s", path.deps) is None
    assert reconcile("never announced", path.deps) is None
    assert path.world.listed == ["s"]


def test_a_second_run_for_the_same_server_is_refused_while_the_first_is_under_way(path: WritePath) -> None:
    ask(path, up())

    with path.deps.intents.lease("s"), pytest.raises(LeaseHeld, match=r"^s: "):
        look(path)


@pytest.mark.parametrize("listed", [listing(definition("a")), ServerTimeout("s", "no answer")], ids=["ends", "fails"])
def test_a_run_that_lost_its_lease_requests_another_reconciliation(
    path: WritePath, listed: Listing | ServerTimeout
) -> None:
    leases = Leases()
    ask(path, up())

    def list_late(_: Intent) -> Listing:
        leases.lose("s")
        if isinstance(listed, ServerTimeout):
            raise listed
        return listed

    intents = cast("Intents", WithLeases(path.deps.intents, leases))
    with pytest.raises(LeaseHeld, match="lost"), capture_logs() as logs:
        reconcile("s", replace(path.deps, intents=intents, list_server=list_late))

    after = path.deps.intents.intent("s")
    assert after is not None
    assert after.is_lagging
    assert after.due_at is not None
    assert after.due_at <= path.deps.intents.now()
    assert "lease_lost" in [log["event"] for log in logs]


def test_an_event_during_a_reconciliation_leaves_the_server_lagging(path: WritePath) -> None:
    path.world.servers["s"] = listing(definition("a"))
    ask(path, up())

    def list_and_be_asked_again(_: object) -> object:
        ask(path, changed())
        return path.world.servers["s"]

    reconcile("s", replace(path.deps, list_server=list_and_be_asked_again))  # type: ignore[arg-type]

    intent = path.deps.intents.intent("s")
    assert intent is not None
    assert (intent.committed, intent.desired) == (1, 2)


def test_a_large_server_is_written_in_batches(path: WritePath, monkeypatch: pytest.MonkeyPatch) -> None:
    path.world.servers["s"] = listing(*(definition(f"tool_{i}") for i in range(2 * BATCH + 1)))
    ask(path, up())
    sizes: list[int] = []
    upsert = path.index.upsert

    def measured(tools: Sequence[EmbeddedTool]) -> None:
        sizes.append(len(tools))
        upsert(tools)

    monkeypatch.setattr(path.index, "upsert", measured)

    look(path)

    assert sizes == [BATCH, BATCH, 1]
    assert len(path.tool_names()) == 2 * BATCH + 1


def _killed(_: object) -> None:
    raise IndexUnavailable("killed here")
