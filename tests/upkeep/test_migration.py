"""Another model takes over while the old one serves: on every engine, through kills, and under load."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from query.catalogue import LiveIndex, live_catalogue
from query.find import find_tool
from query.search.request import FindRequest
from shared.catalog import DefinitionPolicy, Listing, QueryVectors, Scope
from shared.errors import ServerTimeout
from shared.events import ServerEvent
from shared.index.tools import ToolState
from shared.index.versions import IndexStore, IndexVersion, IndexVersions, tools_spec
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.settings import load_settings
from shared.text.bm25 import query_terms
from shared.text.embedding import Embedder
from tests.chaos.interrupted import Leases, WithLeases
from tests.support.builders import changed, definition, down, listing, up
from tests.support.fakes import SaltedEmbedder, WithoutModel, embedded, make_tool
from tests.support.index_versions import (
    ENGINES,
    NEW,
    OLD,
    Catalogue,
    active_version,
    catalogue,
    forget_versions,
    index_version,
    maintain_index,
    migrate,
    reconcile_all,
    request_own_model,
    running,
    store_of,
    tools_found,
)
from tests.support.present import present
from tests.support.waiting import eventually
from workers.dependencies import Dependencies
from workers.indexing.records import FailurePolicy
from workers.ingest import reconcile
from workers.upkeep.migrate import BATCH, MIGRATION_LEASE, SOURCE

pytestmark = pytest.mark.process


@pytest.fixture(params=ENGINES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Catalogue]:
    """A catalogue that a worker with the old model has filled: two servers that run, one that is down."""
    with catalogue(str(request.param), tmp_path) as shop:
        fill(shop)
        yield shop


@pytest.fixture
def on_edge(tmp_path: Path) -> Generator[Catalogue]:
    with catalogue("edge", tmp_path) as shop:
        fill(shop)
        yield shop


def fill(shop: Catalogue) -> None:
    shop.world.servers = {
        "files": listing(definition("read_file"), definition("write_file")),
        "clock": listing(definition("get_time"), definition("set_alarm")),
        "gone": listing(definition("old_tool")),
    }
    deps = shop.worker(OLD)
    for event in (up("files", ["dev"]), up("clock"), up("gone")):
        shop.intents.record(event, due_in_s=0)
    reconcile_all(deps)
    shop.intents.record(down("gone"), due_in_s=0)
    reconcile_all(deps)
    store_of(deps).mark_complete(is_filled=True)


def wanting(shop: Catalogue, model: str = NEW) -> Dependencies:
    """Return a worker with the new model that has asked for it."""
    deps = shop.worker(model)
    request_own_model(deps)
    return deps


def finish(deps: Dependencies) -> Dependencies:
    """Migrate as sweeps do, until there is no next index version."""
    for _ in range(20):
        if store_of(deps).versions().next_version is None:
            return deps
        migrate(deps, lambda _: None)
    raise AssertionError("still not in service")


def states(deps: Dependencies) -> dict[str, dict[str, ToolState]]:
    index = active_version(deps).index
    return {server_id: index.tool_states(server_id) for server_id in index.servers_with_tools()}


def counts(deps: Dependencies) -> dict[str, object]:
    index = active_version(deps).index
    tools = [*index.tools(Scope(), limit=100).tools, *index.tools(Scope(status="stopped"), limit=100).tools]
    return {tool.qualified_name: tool.token_counts for tool in tools}


def test_a_migration_that_lost_the_lease_of_a_server_requests_its_reconciliation(shop: Catalogue) -> None:
    leases = Leases()

    class Slow(SaltedEmbedder):
        def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if self.model == NEW:
                leases.lose("gone")
            return super().passages(texts)

    deps = replace(shop.worker(NEW, Slow), intents=cast("Intents", WithLeases(shop.intents, leases)))
    request_own_model(deps)

    migrate(deps, lambda _: None)

    lagging = [intent.server_id for intent in shop.intents.intents() if intent.is_lagging]
    assert lagging == ["gone"]


def closest_name(deps: Dependencies, text: str) -> float:
    """Return the cosine of the closest name in service to this text, embedded by the model in service."""
    now = active_version(deps)
    (candidates,) = now.index.search([QueryVectors(now.embedder.query(text), query_terms(""))], Scope(), 5)
    return max(candidates.name.values())


SERVERS = ("files", "clock", "gone")


class Killed(BaseException):
    """The process dies: nothing of ours catches it."""


def test_another_model_takes_over_with_everything_as_it_was_and_no_server_is_asked(shop: Catalogue) -> None:
    before, counted, listed = states(shop.worker(OLD)), counts(shop.worker(OLD)), list(shop.world.listed)

    deps = wanting(shop)
    assert active_version(deps).version == index_version(OLD)
    finish(deps)

    assert active_version(deps).version == index_version(NEW)
    assert states(deps) == before
    assert counts(deps) == counted
    assert closest_name(deps, "scripted: get time") == pytest.approx(1, abs=1e-3)
    assert shop.world.listed == listed


def test_marks_are_carried_over_and_held_tools_stay_held(shop: Catalogue) -> None:
    worker = shop.worker(OLD)
    shop.world.servers["files"] = listing(definition("read_file", "sends it away"), definition("write_file"))
    shop.world.servers["clock"] = listing(definition("get_time", "sends it away"), definition("set_alarm"))
    policies: list[tuple[str, DefinitionPolicy]] = [("files", "notify"), ("clock", "approve")]
    for server, policy in policies:
        shop.intents.record(changed(server), due_in_s=0)
        reconcile(server, replace(worker, definition_changes=policy))

    deps = finish(wanting(shop))
    shop.intents.record(changed("clock"), due_in_s=0)
    reconcile("clock", replace(deps, definition_changes="approve"))

    assert states(deps)["files"]["read_file"].changed_since
    assert not states(deps)["files"]["write_file"].changed_since
    assert set(states(deps)["clock"]) == {"set_alarm"}


def test_a_worker_with_the_model_in_service_starts_no_migration(shop: Catalogue) -> None:
    deps = wanting(shop, OLD)

    assert store_of(deps).versions().next_version is None


def test_what_changes_meanwhile_is_found_at_once_and_after_the_switch(shop: Catalogue) -> None:
    deps = wanting(shop)
    shop.world.servers["files"] = listing(definition("read_file", "now in colour"), definition("copy_file"))
    shop.world.servers["fresh"] = listing(definition("new_tool"))
    for event in (changed("files"), up("fresh"), down("clock")):
        shop.intents.record(event, due_in_s=0)
    reconcile_all(deps)
    truth = {"files:read_file", "files:copy_file", "fresh:new_tool"}
    assert active_version(deps).version == index_version(OLD)
    assert tools_found(deps) == truth

    finish(deps)

    assert active_version(deps).version == index_version(NEW)
    assert tools_found(deps) == truth
    assert closest_name(deps, "scripted: copy file") == pytest.approx(1, abs=1e-3)


@contextmanager
def before_the_switch(change: Callable[[], None]) -> Generator[None]:
    """Change something once, after the last comparison of a migration and before its version is active."""
    activate, remaining = IndexStore.activate, [change]

    def changed_first(store: IndexStore, version: IndexVersion) -> None:
        while remaining:
            remaining.pop()()
        activate(store, version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexStore, "activate", changed_first)
        yield


def reconciled(shop: Catalogue, deps: Dependencies, *events: ServerEvent) -> None:
    for event in events:
        shop.intents.record(event, due_in_s=0)
    reconcile_all(deps)


def test_a_server_that_changed_after_its_comparison_is_reconciled_after_the_switch(shop: Catalogue) -> None:
    deps = wanting(shop)
    shop.world.servers["fresh"] = shop.world.servers["clock"] = listing(definition("stop_watch"))

    with before_the_switch(lambda: reconciled(shop, deps, changed("clock"), up("fresh"), up("gone"))):
        migrate(deps, lambda _: None)
    assert active_version(deps).version == index_version(NEW)
    lagging = {intent.server_id for intent in shop.intents.intents() if intent.is_lagging}
    reconcile_all(deps)

    assert lagging == {"clock", "fresh", "gone"}
    files = {"files:read_file", "files:write_file"}
    assert tools_found(deps) == {"clock:stop_watch", "fresh:stop_watch", "gone:old_tool"} | files
    assert tools_found(deps, "stopped") == set()


def test_a_server_quarantined_after_its_comparison_is_hidden_after_the_switch(shop: Catalogue) -> None:
    deps = replace(wanting(shop), failure_policy=FailurePolicy(quarantine_after=1))
    shop.world.servers["clock"] = ServerTimeout("clock", "no answer")

    def fail() -> None:
        with pytest.raises(ServerTimeout):
            reconciled(shop, deps, changed("clock"))

    with before_the_switch(fail):
        migrate(deps, lambda _: None)
    assert active_version(deps).version == index_version(NEW)
    assert "clock:get_time" in tools_found(deps)
    with suppress(ServerTimeout):
        reconcile("clock", deps)

    assert tools_found(deps, "quarantined") == {"clock:get_time", "clock:set_alarm"}


def test_a_reconciliation_that_the_switch_overtook_is_repeated_with_the_new_version(shop: Catalogue) -> None:
    deps = wanting(shop)

    def switch_then_list(intent: Intent) -> Listing:
        finish(deps)
        return shop.world.list_server(intent)

    shop.world.servers["clock"] = listing(definition("get_time"), definition("stop_watch"))
    shop.intents.record(changed("clock"), due_in_s=0)

    # leases that exclude no other run, as of a process that was suspended
    frozen = cast("Intents", WithLeases(shop.intents, Leases()))
    reconcile("clock", replace(deps, list_server=switch_then_list, intents=frozen))
    assert "clock:stop_watch" not in tools_found(deps)
    reconcile_all(deps)

    assert "clock:stop_watch" in tools_found(deps)


@pytest.mark.parametrize("requests", [0, 1])
def test_a_process_that_dies_at_the_switch_leaves_its_requests_to_the_next_sweep(
    shop: Catalogue, requests: int
) -> None:
    deps, numbers = wanting(shop), itertools.count()
    changing = before_the_switch(lambda: reconciled(shop, deps, down("files"), down("clock")))

    class Dying:
        def request(self, server_id: str, source: str) -> None:
            if source == SOURCE and next(numbers) == requests:
                raise Killed
            shop.intents.request(server_id, source)

        def __getattr__(self, name: str) -> object:
            return getattr(shop.intents, name)

    with changing, pytest.raises(Killed):
        migrate(replace(deps, intents=cast("Intents", Dying())), lambda _: None)
    assert active_version(deps).version == index_version(NEW)
    maintain_index(deps)
    reconcile_all(deps)
    maintain_index(deps)

    assert tools_found(deps) == set()
    assert not any(intent.is_lagging for intent in shop.intents.intents())


def test_what_is_left_of_an_abandoned_migration_does_not_come_back(shop: Catalogue) -> None:
    migrate(wanting(shop), lambda _: None, slice_s=0.5)
    back = wanting(shop, OLD)
    shop.world.servers["files"] = listing(definition("read_file"))
    shop.intents.record(changed("files"), due_in_s=0)
    reconcile_all(back)

    deps = finish(wanting(shop))

    assert active_version(deps).version == index_version(NEW)
    assert tools_found(deps) == {"files:read_file", "clock:get_time", "clock:set_alarm"}


@pytest.mark.parametrize("visits", [1, 2, 3])
def test_a_migration_that_was_killed_is_continued(shop: Catalogue, visits: int) -> None:
    before = states(shop.worker(OLD))
    countdown = itertools.count(1)

    def die(_: str) -> None:
        if next(countdown) == visits:
            raise Killed

    with pytest.raises(Killed):
        migrate(wanting(shop), die)
    assert tools_found(shop.worker(NEW)) == tools_found(shop.worker(OLD))

    deps = finish(wanting(shop))

    assert active_version(deps).version == index_version(NEW)
    assert states(deps) == before


def test_replicas_are_embedded_once(shop: Catalogue) -> None:
    for name in ("one", "two", "three"):
        shop.world.servers[name] = listing(definition("copied_tool"))
        shop.intents.record(up(name), due_in_s=0)
    reconcile_all(shop.worker(OLD))

    deps = finish(wanting(shop))

    embedder = active_version(deps).embedder
    assert isinstance(embedder, SaltedEmbedder)
    assert embedder.embedded_texts.count("scripted: copied tool") == 1


def test_tools_with_cleared_digests_keep_their_own_vectors(shop: Catalogue) -> None:
    deps = wanting(shop)
    old = active_version(deps).index
    old.clear_digests({state.digest for state in old.tool_states("clock").values()})

    finish(deps)

    assert {state.digest for state in states(deps)["clock"].values()} == {""}
    assert closest_name(deps, "scripted: get time") == pytest.approx(1, abs=1e-3)
    assert closest_name(deps, "scripted: set alarm") == pytest.approx(1, abs=1e-3)


def test_a_server_with_a_running_reconciliation_is_migrated_later(shop: Catalogue) -> None:
    deps = wanting(shop)
    with shop.intents.lease("clock"):
        migrate(deps, lambda _: None, slice_s=0.5)
        assert active_version(deps).version == index_version(OLD)

    finish(deps)

    assert active_version(deps).version == index_version(NEW)
    assert "clock:get_time" in tools_found(deps)


def test_of_two_workers_at_once_one_switches_once(shop: Catalogue) -> None:
    with capture_logs() as logs:
        workers = [wanting(shop), wanting(shop)]
        turns = itertools.cycle(workers)
        with running(lambda: migrate(next(turns), lambda _: None), times=2):
            eventually(lambda: active_version(workers[0]).version == index_version(NEW))

    assert [log["event"] for log in logs].count("index_version_activated") == 1


def test_a_version_to_which_many_servers_lag_is_not_activated(shop: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.upkeep.migrate.FEW", 1)
    deps = wanting(shop)
    with shop.intents.lease(MIGRATION_LEASE):
        migrate(deps, lambda _: None)
    reconciled(shop, deps, down("files"), down("clock"))

    with shop.intents.lease("files"), shop.intents.lease("clock"):
        migrate(deps, lambda _: None)
        assert active_version(deps).version == index_version(OLD)
    with shop.intents.lease("files"):
        migrate(deps, lambda _: None)

    assert active_version(deps).version == index_version(NEW)
    reconcile_all(deps)
    assert tools_found(deps) == set()


def test_a_worker_that_the_switch_overtook_writes_nothing_more(shop: Catalogue) -> None:
    first, second = wanting(shop), wanting(shop)
    visited = list[str]()

    def switch_and_change(server_id: str) -> None:
        visited.append(server_id)
        if len(visited) == 1:
            finish(second)
            assert active_version(second).version == index_version(NEW)
            for each in ("clock", "files"):
                shop.world.servers[each] = listing(definition("new_name"))
            reconciled(shop, second, changed("clock"), changed("files"))

    migrate(first, switch_and_change)

    assert len(visited) == 1
    assert tools_found(second) == {"clock:new_name", "files:new_name"}


def test_tools_of_servers_without_a_record_are_migrated_too(shop: Catalogue) -> None:
    old = active_version(wanting(shop)).index
    for version in (OLD, NEW):
        index = IndexStore(shop.engine).index(index_version(version))
        left = make_tool("left" if version == OLD else "abandoned", "tool")
        index.upsert([embedded(left)])
    assert {"left", "abandoned"}.isdisjoint(old.revisions())

    deps = finish(wanting(shop))

    assert set(states(deps)) == {"files", "clock", "gone", "left"}


def test_a_retired_index_version_is_deleted_when_no_service_searches_it(shop: Catalogue) -> None:
    deps = finish(wanting(shop))

    assert store_of(deps).drop_retired(older_than_s=600) == []
    assert store_of(deps).drop_retired(older_than_s=0) == [index_version(OLD).name]
    assert store_of(deps).drop_retired(older_than_s=0) == []
    assert "files:read_file" in tools_found(deps)


def test_a_model_that_cannot_be_loaded_is_not_asked_for(shop: Catalogue) -> None:
    deps = shop.worker(NEW, lambda model: WithoutModel(model) if model == NEW else SaltedEmbedder(model))

    request_own_model(deps)

    assert store_of(deps).versions().next_version is None


def test_a_next_model_that_cannot_be_loaded_is_abandoned_and_tools_still_change(shop: Catalogue) -> None:
    wanting(shop)
    deps = shop.worker(OLD, lambda model: WithoutModel(model) if model == NEW else SaltedEmbedder(model))
    shop.world.servers["clock"] = listing(definition("get_time"), definition("stop_watch"))
    shop.intents.record(changed("clock"), due_in_s=0)

    reconcile_all(deps)
    migrate(deps, lambda _: None)

    assert tools_found(deps) >= {"clock:get_time", "clock:stop_watch"}
    assert store_of(deps).versions().next_version is None


def test_an_old_model_that_is_gone_is_replaced_and_meanwhile_keywords_find(shop: Catalogue) -> None:
    def without_old(model: str) -> Embedder:
        return WithoutModel(model) if model == OLD else SaltedEmbedder(model)

    deps = shop.worker(NEW, without_old)
    request_own_model(deps)
    followed = LiveIndex(present(deps.versions))
    found = live_catalogue(followed, load_settings())

    meanwhile = find_tool(FindRequest(tool_description="get time"), Scope(), found)[0]
    finish(deps)
    followed.refresh()
    afterwards = find_tool(FindRequest(tool_description="get time"), Scope(), found)[0]

    assert (meanwhile.tools[0].name, meanwhile.keywords_only) == ("clock:get_time", True)
    assert (afterwards.tools[0].name, afterwards.keywords_only) == ("clock:get_time", None)


def test_tools_from_before_index_versions_are_adopted_unchanged(shop: Catalogue) -> None:
    forget_versions(shop)

    deps = wanting(shop, OLD)

    assert active_version(deps).version == index_version(OLD)
    assert store_of(deps).versions().next_version is None
    assert "files:read_file" in tools_found(deps)


def test_tools_from_before_index_versions_of_another_model_serve_until_migrated(shop: Catalogue) -> None:
    forget_versions(shop)
    store = IndexStore(shop.engine)

    store.ensure_active_version(index_version(NEW), lambda: [OLD, NEW])
    assert store.versions().active == index_version(OLD)
    finish(wanting(shop))

    assert "files:read_file" in tools_found(shop.worker(NEW))


def left_by_an_older_release(shop: Catalogue) -> str:
    """Make the index equal to one of a release whose tools this one cannot read; return that collection's name."""
    older = replace(index_version(OLD), schema="3")
    shop.engine.ensure(tools_spec(older))
    shop.engine.drop(index_version(OLD).name)
    forget_versions(shop)  # each schema has pointers of its own
    store = IndexStore(shop.engine)
    store.ensure(index_version(OLD))
    index = store.index(index_version(OLD))
    for record in index.servers():
        index.put_server(record.model_copy(update={"features_version": "3"}))
    return older.name


def test_an_index_of_an_older_release_is_filled_again_before_any_savings_are_claimed(shop: Catalogue) -> None:
    older = left_by_an_older_release(shop)
    deps = shop.worker(OLD)
    live = LiveIndex(IndexVersions(IndexStore(shop.engine), SaltedEmbedder(OLD), SaltedEmbedder))
    found = live_catalogue(live, load_settings(no_match_threshold=-1.0))
    seen = list[tuple[int, int, tuple[int, int], bool, bool]]()

    def ask() -> None:
        answer = find_tool(FindRequest(tool_description=["get time", "anything"]), Scope(), found)[0]
        saved, awaited = answer.token_metrics.tokens_saved, found.ledger.being_listed(Scope())
        seen.append((len(answer.tools), saved, awaited, bool(answer.warnings), live.filling() is None))

    ask()
    maintain_index(deps)
    ask()
    reconcile("clock", deps)
    maintain_index(deps)
    ask()
    assert store_of(deps).drop_retired(older_than_s=-1) == []
    reconcile_all(deps)
    maintain_index(deps)
    ask()

    assert seen[:3] == [(0, 0, (2, 2), True, False), (0, 0, (2, 2), True, False), (2, 0, (1, 2), True, False)]
    tools, _, *state = seen[3]
    assert (tools, *state) == (4, (0, 2), False, True)
    assert tools_found(deps, "stopped") == set()
    assert store_of(deps).drop_retired(older_than_s=-1) == [older]


def test_a_server_that_cannot_be_listed_does_not_keep_the_index_from_being_filled(shop: Catalogue) -> None:
    left_by_an_older_release(shop)
    deps = shop.worker(OLD)
    shop.world.servers["clock"] = ServerTimeout("clock", "no answer")
    maintain_index(deps)
    with pytest.raises(ServerTimeout):
        reconcile("clock", deps)
    reconcile("files", deps)

    maintain_index(deps)

    assert store_of(deps).is_filled()


def test_each_search_uses_one_index_version_at_every_moment(shop: Catalogue) -> None:
    asked = FindRequest(tool_description="get time")
    reader = LiveIndex(IndexVersions(IndexStore(shop.engine), SaltedEmbedder(OLD), SaltedEmbedder))
    found = live_catalogue(reader, load_settings(no_match_threshold=0.3))
    deps, numbers = wanting(shop), itertools.count()

    def ask() -> None:
        now = found.pinned()
        (near,) = now.index.search(
            [QueryVectors(now.embedder.query("scripted: get time"), query_terms(""))], Scope(), 3
        )
        assert max(near.name.values()) > 0.99, "the query is of another model than what it found"
        answer = find_tool(asked, Scope(), found)[0]
        assert answer.tools[0].name == "clock:get_time"
        assert answer.token_metrics.baseline_tokens >= answer.token_metrics.returned_tokens

    def change() -> None:
        number = next(numbers)
        shop.world.servers["files"] = listing(definition("read_file"), definition(f"tool_{number}"))
        shop.intents.record(changed("files"), due_in_s=0)
        shop.intents.record(up("gone") if number % 2 else down("gone"), due_in_s=0)
        reconcile_all(deps)

    with running(ask) as questions, running(change), running(reader.refresh):
        eventually(lambda: questions() > 10)
        with running(lambda: migrate(deps, lambda _: None)):
            eventually(lambda: reader.current().version == index_version(NEW))
        after = questions()
        eventually(lambda: questions() > after + 10)

    last = next(numbers) - 1
    reconcile_all(deps)
    back = {"gone:old_tool"} if last % 2 else set[str]()
    assert tools_found(deps) == {"files:read_file", f"files:tool_{last}", "clock:get_time", "clock:set_alarm"} | back


def test_a_large_server_is_migrated_in_batches_between_which_it_may_be_reconciled(on_edge: Catalogue) -> None:
    on_edge.world.servers["large"] = listing(*(definition(f"tool_{i}") for i in range(2 * BATCH + 1)))
    on_edge.intents.record(up("large"), due_in_s=0)
    reconcile_all(on_edge.worker(OLD))
    released: list[str] = []

    deps = wanting(on_edge)
    migrate(deps, released.append)
    finish(deps)

    assert released.count("large") >= 3
    assert len(active_version(deps).index.tool_states("large")) == 2 * BATCH + 1


def test_how_far_it_is_can_be_read_beside_the_index_until_it_is_in_service(on_edge: Catalogue) -> None:
    deps = wanting(on_edge)
    shown = list[tuple[int, int]]()

    for held in (SERVERS, SERVERS[1:]):
        with ExitStack() as leases:
            for server_id in held:
                leases.enter_context(on_edge.intents.lease(server_id))
            migrate(deps, lambda _: None)
        progress = present(on_edge.intents.migration())
        assert progress.model == NEW
        shown.append((progress.done, progress.servers))
    finish(deps)

    assert shown == [(0, 3), (1, 3)]
    assert on_edge.intents.migration() is None


def test_how_far_it_was_is_forgotten_when_the_model_in_service_is_wanted_again(on_edge: Catalogue) -> None:
    migrate(wanting(on_edge), lambda _: None, slice_s=0.0)
    assert on_edge.intents.migration() is not None

    maintain_index(wanting(on_edge, OLD))

    assert on_edge.intents.migration() is None
