"""An index that was wiped, while its directory lay there or under running processes, is filled again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from query.answers.answer import FindResponse
from query.catalogue import LiveIndex, live_catalogue
from query.find import find_tool
from query.search.request import FindRequest
from shared.catalog import Scope
from shared.errors import IndexLost, IndexUnavailable
from shared.index.records import SERVERS_COLLECTION
from shared.index.versions import IndexStore, IndexVersions
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.settings import load_settings
from tests.support.builders import RETRY_POLICY, definition, down, listing, up
from tests.support.fakes import SaltedEmbedder
from tests.support.index_versions import (
    ENGINES,
    NEW,
    OLD,
    Catalogue,
    catalogue,
    forget_versions,
    index_version,
    maintain_index,
    migrate,
    rebuild_if_lost,
    reconcile_all,
    request_own_model,
    store_of,
    tools_found,
)
from tests.support.own_collections import VanishingCollections
from tests.support.waiting import eventually
from workers.dependencies import Dependencies
from workers.ingest import reconcile
from workers.upkeep.recover import restore_if_lost

pytestmark = pytest.mark.process

TRUTH = {"files:read_file", "clock:get_time"}


def _drop_all(shop: Catalogue) -> None:
    for name in shop.engine.names():
        shop.engine.drop(name)


wipes: dict[str, Callable[[Catalogue], None]] = {
    "everything": _drop_all,
    "the tools": lambda shop: shop.engine.drop(index_version(OLD).name),
    "the servers": lambda shop: shop.engine.drop(SERVERS_COLLECTION),
}
wiped = pytest.mark.parametrize("wipe", wipes.values(), ids=list(wipes))


@pytest.fixture(params=ENGINES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Catalogue]:
    """A catalogue of two servers that run and one that is down, on a server whose collections can vanish."""
    with catalogue(str(request.param), tmp_path) as shop:
        if request.param == "edge":
            shop.engine = VanishingCollections(shop.engine)
        fill(shop)
        yield shop


def fill(shop: Catalogue) -> None:
    shop.world.servers = {
        "files": listing(definition("read_file")),
        "clock": listing(definition("get_time")),
        "gone": listing(definition("old_tool")),
    }
    deps = shop.worker(OLD)
    for event in (up("files", ["dev"]), up("clock"), up("gone"), down("gone")):
        shop.intents.record(event, due_in_s=0)
    reconcile_all(deps)
    rebuild_if_lost(deps)
    reconcile_all(deps)
    store_of(deps).mark_complete(is_filled=True)


def sweep(deps: Dependencies) -> list[str]:
    """Do what a sweep does; return the servers that are reconciled."""
    maintain_index(deps)
    due = sorted(deps.intents.claim_due(100))
    for server_id in due:
        reconcile(server_id, deps)
    return due


@wiped
def test_collections_that_vanish_under_a_running_worker_are_filled_by_the_next_sweep(
    shop: Catalogue, wipe: Callable[[Catalogue], None]
) -> None:
    deps = shop.worker(OLD)
    assert sweep(deps) == []

    wipe(shop)
    looked_at = sweep(deps)

    assert looked_at == ["clock", "files", "gone"]
    assert tools_found(deps) == TRUTH
    records = {record.server_id: record.status for record in deps.index.servers()}
    assert records == {"clock": "running", "files": "running", "gone": "stopped"}
    assert sweep(deps) == []


def test_every_server_is_in_both_stores_again_before_any_is_reconciled(shop: Catalogue, tmp_path: Path) -> None:
    _drop_all(shop)
    rebuild_if_lost(shop.worker(OLD))

    with closing(Intents(SqliteStorage(tmp_path / "wiped.sqlite3"), RETRY_POLICY)) as wiped:
        restore_if_lost(wiped, shop.worker(OLD).index)

        known = {intent.server_id: intent.status for intent in wiped.intents()}
    assert known == {"clock": "running", "files": "running", "gone": "stopped"}


class SpokenOfMeanwhile(Intents):
    """Intents that a server which was down is announced in, just after they were read."""

    def intents(self) -> Iterator[Intent]:
        read = list(super().intents())
        self.record(up("gone"), due_in_s=0)
        return iter(read)


def test_a_server_that_comes_up_during_the_rebuilding_stays_up(shop: Catalogue, tmp_path: Path) -> None:
    deps = shop.worker(OLD)
    _drop_all(shop)

    with closing(SpokenOfMeanwhile(SqliteStorage(tmp_path / "intents.sqlite3"), RETRY_POLICY)) as intents:
        rebuild_if_lost(replace(deps, intents=intents))
    reconcile_all(deps)

    assert tools_found(deps) == {*TRUTH, "gone:old_tool"}


class InBetween(Intents):
    """Intents before whose first reading something happens: a rebuilding reads them before it writes a record."""

    happens: Callable[[], object] | None = None

    def intents(self) -> Iterator[Intent]:
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return super().intents()


def test_two_workers_that_find_the_index_lost_ask_for_each_server_once(shop: Catalogue, tmp_path: Path) -> None:
    first, second = shop.worker(OLD), shop.worker(OLD)
    before = {intent.server_id: intent.desired for intent in shop.intents.intents()}
    _drop_all(shop)

    with (
        closing(InBetween(SqliteStorage(tmp_path / "intents.sqlite3"), RETRY_POLICY)) as intents,
        capture_logs() as logs,
    ):
        intents.happens = lambda: rebuild_if_lost(replace(second, intents=intents))
        rebuild_if_lost(replace(first, intents=intents))
        after = {intent.server_id: intent.desired for intent in intents.intents()}

    assert after == {server_id: desired + 1 for server_id, desired in before.items()}
    assert [log["event"] for log in logs].count("index_rebuilding") == 1


@pytest.mark.parametrize(
    ("lost", "said"), [("everything", "is being filled"), ("the tools", "Servers still being listed: 2")]
)
def test_answers_during_a_rebuild_are_marked_as_incomplete(
    shop: Catalogue, tmp_path: Path, lost: str, said: str
) -> None:
    reader, deps = (
        LiveIndex(IndexVersions(IndexStore(shop.engine), SaltedEmbedder(OLD), SaltedEmbedder)),
        shop.worker(OLD),
    )
    found, asked = live_catalogue(reader, load_settings()), FindRequest(tool_description="get time")
    answers: list[FindResponse] = []
    assert find_tool(asked, Scope(), found)[0].tools  # the service knows the index as filled
    wipes[lost](shop)

    with closing(InBetween(SqliteStorage(tmp_path / "intents.sqlite3"), RETRY_POLICY)) as intents:
        intents.happens = lambda: answers.append(find_tool(asked, Scope(), found)[0])
        rebuild_if_lost(replace(deps, intents=intents))
        answers.append(find_tool(asked, Scope(), found)[0])

    assert [answer.tools for answer in answers] == [[], []]
    assert said in answers[0].warnings[0]
    assert "Servers still being listed: 2" in answers[1].warnings[0]


@wiped
def test_a_running_query_service_reports_a_lost_index_and_answers_again(
    shop: Catalogue, wipe: Callable[[Catalogue], None]
) -> None:
    reader = LiveIndex(IndexVersions(IndexStore(shop.engine), SaltedEmbedder(OLD), SaltedEmbedder))
    found, asked = live_catalogue(reader, load_settings()), FindRequest(tool_description="get time")
    tools = [tool.name for tool in find_tool(asked, Scope(), found)[0].tools]
    wipe(shop)

    with pytest.raises(IndexUnavailable):
        find_tool(asked, Scope(), found)
    sweep(shop.worker(OLD))

    assert [tool.name for tool in find_tool(asked, Scope(), found)[0].tools] == tools


def test_a_reconciliation_without_the_index_names_the_lost_part_and_is_repeated(shop: Catalogue) -> None:
    deps = shop.worker(OLD)
    wipes["the tools"](shop)
    shop.intents.record(up("files"), due_in_s=0)

    with pytest.raises(IndexLost, match=index_version(OLD).name):
        reconcile("files", deps)

    sweep(deps)
    assert "files:read_file" in tools_found(deps)


def test_a_new_catalogue_is_no_lost_one(tmp_path: Path) -> None:
    with catalogue("edge", tmp_path) as shop, capture_logs() as logs:
        shop.world.servers = {"files": listing(definition("read_file"))}
        shop.intents.record(up("files"), due_in_s=0)

        rebuild_if_lost(shop.worker(OLD))
        reconcile_all(shop.worker(OLD))
        sweep(shop.worker(OLD))

    assert shop.world.listed == ["files"]
    assert "index_rebuilding" not in [log["event"] for log in logs]


def test_an_index_from_before_index_versions_keeps_its_counts_during_reconciliations(shop: Catalogue) -> None:
    forget_versions(shop)
    deps = shop.worker(OLD)

    rebuild_if_lost(deps)

    assert {record.server_id for record in deps.index.servers() if record.is_listed} == {"files", "clock"}
    assert sorted(deps.intents.claim_due(100)) == ["clock", "files", "gone"]


def test_a_lost_next_index_version_is_filled_again(shop: Catalogue) -> None:
    deps = shop.worker(NEW)
    request_own_model(deps)
    until = time.monotonic() + 0.2
    migrate(deps, lambda _: eventually(lambda: time.monotonic() > until), slice_s=0.1)
    shop.engine.drop(index_version(NEW).name)

    for _ in range(5):
        migrate(deps, lambda _: None)

    assert store_of(deps).versions().active == index_version(NEW)
    assert tools_found(deps) == TRUTH


@pytest.mark.parametrize("lost", ["everything", "the tools", "the servers"])
def test_a_directory_wiped_while_no_process_ran_is_filled_again(tmp_path: Path, lost: str) -> None:
    with catalogue("edge", tmp_path) as shop:
        fill(shop)
        world = shop.world
    below = {"everything": "", "the tools": index_version(OLD).name, "the servers": SERVERS_COLLECTION}[lost]
    shutil.rmtree(tmp_path / "index" / below)

    with catalogue("edge", tmp_path) as shop:
        shop.world.servers = world.servers
        deps = shop.worker(OLD)
        sweep(deps)

        assert tools_found(deps) == TRUTH
