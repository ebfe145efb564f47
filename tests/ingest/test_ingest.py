from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from shared.catalog import EmbeddedTool, Listing, Scope, ToolDefinition
from shared.errors import LeaseHeld, ServerTimeout
from shared.events import ServerEvent
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from tests.chaos.interrupted import Leases, WithLeases
from tests.support.builders import WritePath, changed, definition, down, listing, up, write_path
from tests.support.fakes import asking, closest
from tests.support.present import present
from workers.ingest import BATCH, reconcile

EVERYTHING = Scope()


@pytest.fixture
def path(tmp_path: Path) -> WritePath:
    return write_path(tmp_path)


def look(path: WritePath, *events: ServerEvent, server_id: str = "s") -> None:
    """Reconcile the server after these events."""
    for event in events:
        path.deps.intents.record(event, due_in_s=60)
    reconcile(server_id, path.deps)


def offer(path: WritePath, *tools: ToolDefinition, event: ServerEvent | None = None, name: str = "scripted") -> None:
    """Reconcile the server, which has these tools from now on; by default, it came up."""
    path.world.servers["s"] = listing(*tools, declared_name=name)
    look(path, event or up())


def findable(path: WritePath) -> set[str]:
    return {tool.qualified_name for tool in closest(path.index, asking(), EVERYTHING, 100)}


def test_every_tool_of_a_server_that_came_up_is_found_and_counted(path: WritePath) -> None:
    offer(path, definition("read_file"), definition("write_file"), event=up(groups=["dev"]))

    record = present(path.index.server("s"))
    assert findable(path) == {"s:read_file", "s:write_file"}
    assert (record.tool_count, record.groups, record.stale_since) == (2, frozenset({"dev"}), None)
    assert record.tokens["cl100k_base"] == path.index.token_sum(EVERYTHING, "cl100k_base").tokens > 0


def test_an_unchanged_server_is_neither_counted_nor_embedded_nor_written(path: WritePath) -> None:
    offer(path, definition("read_file"), definition("write_file"))
    work = [path.counted.texts, path.embedder.embedded_texts, path.index.upserted]
    before, done = present(path.index.server("s")), [*map(len, work)]

    look(path, changed())

    after = present(path.index.server("s"))
    assert path.world.listed == ["s", "s"]
    assert [*map(len, work)] == done
    assert after.revision == before.revision, "readers would read its tools again"
    assert after.generation > before.generation


def test_sums_taken_by_another_recipe_are_taken_again(path: WritePath) -> None:
    offer(path, definition("a"))
    before = present(path.index.server("s"))
    path.index.put_server(
        before.model_copy(update={"features_version": "an older one", "tokens": {"cl100k_base": 999}})
    )

    look(path, changed())

    after = present(path.index.server("s"))
    assert after.tokens == before.tokens


def test_only_the_tool_whose_definition_changed_is_written_again(path: WritePath) -> None:
    offer(path, definition("a"), definition("b"))

    offer(path, definition("a"), definition("b", "does something else"), event=changed())

    assert path.index.upserted == ["s:a", "s:b", "s:b"]


def test_a_tool_missing_from_the_new_list_is_removed(path: WritePath) -> None:
    offer(path, definition("a"), definition("b"))

    offer(path, definition("a"), event=changed())

    record = present(path.index.server("s"))
    assert findable(path) == {"s:a"}
    assert record.tokens["cl100k_base"] == path.index.token_sum(EVERYTHING, "cl100k_base").tokens


def test_the_tools_of_a_server_that_is_down_are_neither_found_nor_counted_and_yet_kept(path: WritePath) -> None:
    offer(path, definition("a"))

    look(path, down())

    assert findable(path) == set()
    assert path.index.token_sum(EVERYTHING, "cl100k_base").tokens == 0
    assert path.tool_names() == {"a"}


def test_the_intent_has_the_catalogue_id_of_the_last_listing(path: WritePath) -> None:
    path.world.servers["t"] = listing(definition("a"))
    look(path, up("t"), server_id="t")
    offer(path, definition("a"))
    look(path, down())

    ids = {intent.server_id: intent.catalogue_id for intent in path.deps.intents.intents()}
    record = present(path.index.server("t"))
    assert ids == dict.fromkeys("st", record.catalogue_id)
    assert record.catalogue_id == f"{record.catalog_digest} {record.kind}"


def test_a_server_that_returns_unchanged_embeds_nothing(path: WritePath) -> None:
    offer(path, definition("a"))
    look(path, down())

    look(path, up())

    assert findable(path) == {"s:a"}
    assert path.embedder.embedded_texts == ["scripted: a", "a: does something"]


def test_other_groups_reach_the_tools_without_writing_them_again(path: WritePath) -> None:
    offer(path, definition("a"), event=up(groups=["dev"]))

    look(path, up(groups=["ops"]))

    ops = Scope(groups=frozenset({"ops"}))
    assert [tool.qualified_name for tool in closest(path.index, asking(), ops, 8)] == ["s:a"]
    assert len(path.index.upserted) == 1


def test_another_declared_name_is_another_text_and_embedded_again(path: WritePath) -> None:
    offer(path, definition("a"), name="first")

    offer(path, definition("a"), name="second", event=changed())

    texts = path.embedder.embedded_texts
    assert texts == ["first: a", "a: does something", "second: a", "a: does something"]


def test_a_tool_that_cannot_be_counted_is_found_all_the_same_and_named_in_the_record(tmp_path: Path) -> None:
    path = write_path(tmp_path, failing=frozenset({"cl100k_base"}))
    offer(path, definition("a"))

    record = present(path.index.server("s"))
    assert findable(path) == {"s:a"}
    assert record.tokens["cl100k_base"] == 0
    assert record.uncounted["cl100k_base"] == ("a",)
    assert "heuristic" not in record.uncounted


def test_a_server_that_was_never_announced_is_not_reconciled(path: WritePath) -> None:
    offer(path, definition("a"))

    assert reconcile("s", path.deps) is None
    assert reconcile("never announced", path.deps) is None
    assert path.world.listed == ["s"]


def test_a_second_run_for_the_same_server_is_refused_while_the_first_is_under_way(path: WritePath) -> None:
    with path.deps.intents.lease("s"), pytest.raises(LeaseHeld, match=r"^s: "):
        look(path, up())


@pytest.mark.parametrize("listed", [listing(definition("a")), ServerTimeout("s", "no answer")], ids=["ends", "fails"])
def test_a_run_that_lost_its_lease_requests_another_reconciliation(
    path: WritePath, listed: Listing | ServerTimeout
) -> None:
    leases = Leases()
    path.deps.intents.record(up(), due_in_s=60)

    def list_late(_: Intent) -> Listing:
        leases.lose("s")
        if isinstance(listed, ServerTimeout):
            raise listed
        return listed

    intents = cast("Intents", WithLeases(path.deps.intents, leases))
    with pytest.raises(LeaseHeld, match="lost"), capture_logs() as logs:
        reconcile("s", replace(path.deps, intents=intents, list_server=list_late))

    after = present(path.deps.intents.intent("s"))
    assert after.is_lagging
    assert after.due_at is not None
    assert after.due_at <= path.deps.intents.now()
    assert "lease_lost" in [log["event"] for log in logs]


def test_a_large_server_is_written_in_batches(path: WritePath, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    upsert = path.index.upsert

    def measured(tools: Sequence[EmbeddedTool]) -> None:
        sizes.append(len(tools))
        upsert(tools)

    monkeypatch.setattr(path.index, "upsert", measured)

    offer(path, *(definition(f"tool_{i}") for i in range(2 * BATCH + 1)))

    assert sizes == [BATCH, BATCH, 1]
    assert len(path.tool_names()) == 2 * BATCH + 1
