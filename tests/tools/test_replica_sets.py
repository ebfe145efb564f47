"""Replica sets from server records."""

from __future__ import annotations

from query.replicas import ReplicaSets, replica_sets
from shared.catalog import FEATURES_VERSION, OPERATOR_SOURCE, PRODUCER_PREFIX, Endpoint, Scope, Selection, ServerRecord


def _record(
    server_id: str, catalogue: str, declared_name: str = "web", group: str = "g", **rest: object
) -> ServerRecord:
    record = ServerRecord(
        server_id=server_id,
        endpoint=Endpoint(),
        declared_name=declared_name,
        groups=frozenset({group}),
        catalog_digest=catalogue,
        features_version=FEATURES_VERSION,
        last_listed_at=1.0,
    )
    return record.model_copy(update=rest)


EVERYTHING = Scope()
FLEET = (
    _record("web3", "one", group="eu"),
    _record("web1", "one"),
    _record("web2", "one"),
    _record("new", "two"),
    _record("other", "three", declared_name="files"),
)


def _sets(scope: Scope = EVERYTHING, records: tuple[ServerRecord, ...] = FLEET) -> ReplicaSets:
    return replica_sets(records, scope)


def test_servers_with_the_same_catalogue_are_replicas() -> None:
    sets = _sets()

    assert sets.replicas("web3") == ("web1", "web2", "web3")
    assert sets.representative("web3") == "web1"
    assert sets.replicas("other") == ("other",)
    assert sets.copies == {"web2", "web3"}


def test_a_scope_has_replicas_of_its_own_servers_only() -> None:
    assert _sets(Scope(groups=frozenset({"g"}))).replicas("web1") == ("web1", "web2")
    assert _sets(Scope(servers=frozenset({"web3"}))).replicas("web3") == ("web3",)


def test_only_running_servers_that_were_listed_are_replicas() -> None:
    changing, unlisted = _record("a", ""), _record("b", "one", last_listed_at=None)
    stopped = _record("c", "one", status="stopped")

    assert _sets(records=(*FLEET, changing, _record("z", ""), unlisted, stopped)).replicas("web1") == (
        "web1",
        "web2",
        "web3",
    )


def test_a_toolset_with_single_tools_of_a_server_leaves_that_server_out_of_its_set() -> None:
    scope = Scope(within=Selection(servers=frozenset({"web1", "web3"}), tools=frozenset({"web2:get"})))

    assert _sets(scope).replicas("web1") == ("web1", "web3")
    assert _sets(scope).replicas("web2") == ("web2",)


def test_other_catalogues_under_the_same_name_are_relatives() -> None:
    sets = _sets()

    assert sets.relatives.keys() == {"new", "web1"}
    assert all(list(family) == ["new", "web1"] for family in sets.relatives.values())
    assert sets.related == {"web1", "new"}


def test_servers_without_a_name_are_no_relatives_but_may_have_equal_definitions() -> None:
    nameless = _sets(
        records=(_record("a", "one", ""), _record("b", "two", ""), _record("c", "", "", last_listed_at=None))
    )

    assert not nameless.relatives
    assert nameless.related == {"a", "b"}
    assert not _sets(records=(_record("a", "one", ""), *FLEET[4:])).related


def test_a_search_reads_only_the_representatives_and_excludes_a_tool_on_all_replicas() -> None:
    scope = Scope(exclude=frozenset({"web3:get", "put"}))

    narrowed = _sets().without_copies(scope)

    assert narrowed.hidden == {"web2", "web3"}
    assert narrowed.exclude == {"web3:get", "web1:get", "put"}
    assert _sets(records=FLEET[3:]).without_copies(scope) == scope


def test_few_representatives_are_named_instead_of_many_copies() -> None:
    fleet = tuple(_record(f"web{i}", "one") for i in range(9))

    narrowed = _sets(records=fleet).without_copies(Scope())

    assert narrowed.servers == frozenset({"web0"})
    assert not narrowed.hidden


def test_a_server_of_another_owner_is_no_replica() -> None:
    trusted = [_record(server_id, "one", source=OPERATOR_SOURCE) for server_id in ("web1", "web2")]
    others = (_record("ci", "one", source=f"{PRODUCER_PREFIX}ci"), _record("a-stranger", "one", source="anywhere"))
    labelled = _record("labelled", "one", labels={"replica_set": "web"}, source="anywhere")
    ours = _record("web3", "one", labels={"replica_set": "web"}, source=OPERATOR_SOURCE)

    sets = _sets(records=(*trusted, *others, labelled, ours))

    assert sets.replicas("web1") == ("web1", "web2")
    assert all(sets.replicas(each.server_id) == (each.server_id,) for each in (*others, labelled, ours))
    assert sets.strangers == {"a-stranger", "labelled"}


def test_there_are_no_strangers_where_no_server_has_an_owner() -> None:
    trusted = _record("web1", "one", group="own", source=OPERATOR_SOURCE)

    assert _sets().strangers == frozenset()
    assert _sets(records=(*FLEET, trusted)).strangers == {record.server_id for record in FLEET} - {"web1"}
    assert _sets(Scope(groups=frozenset({"eu"})), (*FLEET, trusted)).strangers == frozenset()
