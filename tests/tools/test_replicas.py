"""Servers that are replicas of each other, and the names of the tools that they offer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import patch

import pytest

from query.caller import ANYONE
from query.calling.call import CallRequest, resolve_tool
from query.calling.tool_lookup import ResolvedName, resolve_tool_name
from query.catalogue import Catalogue
from query.records import Ledger
from query.replicas import ReplicaSets, replica_sets
from shared.catalog import (
    FEATURES_VERSION,
    OPERATOR_SOURCE,
    PRODUCER_PREFIX,
    Endpoint,
    IndexedTool,
    Scope,
    Selection,
    ServerRecord,
)
from shared.errors import ToolNotFound
from tests.support.calling import replica_record, replicated
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.filled import CountedIndex

GET = make_tool("web", "get")
OTHER_GET = make_tool("files", "get", description="reads a file")


def _fleet(*servers: tuple[str, str, IndexedTool], index: FakeIndex | None = None) -> Catalogue:
    """Return a catalogue of servers by id, catalogue and tool."""
    index, embedder = index or FakeIndex(), FakeEmbedder()
    for revision, (server_id, catalogue, tool) in enumerate(servers, start=1):
        index.upsert([ingested(replace(tool, server_id=server_id), embedder)])
        index.put_server(replica_record(server_id, catalog_digest=catalogue, revision=revision))
    return Catalogue(index, embedder, Ledger(index))


def _resolved(catalogue: Catalogue, name: str, scope: Scope | None = None) -> ResolvedName:
    return resolve_tool_name(name, scope or Scope(), catalogue)


def _called(catalogue: Catalogue, name: str, server_name: str | None = None) -> list[str]:
    request = CallRequest(tool_name=name, server_name=server_name)
    return _ids(resolve_tool(request, ANYONE, catalogue).replicas)


def _ids(records: Iterable[ServerRecord]) -> list[str]:
    return [record.server_id for record in records]


def test_a_bare_name_stands_for_the_definition_that_all_replicas_share() -> None:
    catalogue = replicated(["web1", "web2", "web3"], GET)

    assert _called(catalogue, "get") == ["web1", "web2", "web3"]
    assert _called(catalogue, GET.definition_name) == ["web1", "web2", "web3"]


def test_a_name_with_its_server_stands_for_this_server_only() -> None:
    catalogue = replicated(["web1", "web2"], GET)

    assert _called(catalogue, "web2:get") == ["web2"]
    assert _called(catalogue, "get", server_name="web2") == ["web2"]


def test_a_thousand_replicas_are_found_by_one_row_and_no_read_of_their_records() -> None:
    index = CountedIndex()
    catalogue = _fleet(*((f"web{number:04}", "one", GET) for number in range(1_000)), index=index)

    with patch.object(index, "tool_names", wraps=index.tool_names) as rows:
        assert len(_called(catalogue, "get")) == 1_000

    assert rows.call_args.args[1].servers == {"web0000"}
    assert index.reads["server"] == 0


class _EmptiedLedger(Ledger):
    """A ledger that lost all records after a name was resolved."""

    def record(self, server_id: str) -> ServerRecord | None:
        return None


def test_a_tool_whose_replicas_vanish_while_its_name_is_resolved_is_not_found() -> None:
    catalogue = replicated(["web1", "web2"], GET)

    with pytest.raises(ToolNotFound, match="is no tool of a known server any more"):
        _called(replace(catalogue, ledger=_EmptiedLedger(catalogue.index)), "get")


def test_replicas_outside_the_scope_are_not_called() -> None:
    catalogue = replicated(["web1", "web2", "web3"], GET)

    assert _resolved(catalogue, "get", Scope(servers=frozenset({"web2", "web3"}))).server_ids == ("web2", "web3")


def test_servers_whose_catalogues_differ_serve_a_definition_that_they_share() -> None:
    catalogue = _fleet(("old1", "old", GET), ("old2", "old", GET), ("new1", "new", GET))

    assert _called(catalogue, "get") == ["new1", "old1", "old2"]


def test_definitions_that_differ_are_candidates_by_server_and_each_has_a_name_by_digest() -> None:
    catalogue = _fleet(("web1", "one", GET), ("web2", "one", GET), ("files", "two", OTHER_GET))

    with pytest.raises(ToolNotFound) as caught:
        _resolved(catalogue, "get")

    assert caught.value.candidates == ("files:get", "web1:get")
    assert _called(catalogue, GET.definition_name) == ["web1", "web2"]
    assert _called(catalogue, OTHER_GET.definition_name) == ["files"]


def test_a_definition_behind_many_equal_ones_is_not_overlooked() -> None:
    equal = ((f"s{number}", f"c{number}", GET) for number in range(30))
    catalogue = _fleet(*equal, ("z", "z", OTHER_GET))

    with pytest.raises(ToolNotFound, match="several servers"):
        _resolved(catalogue, "get")
    assert _called(catalogue, OTHER_GET.definition_name) == ["z"]


def test_a_tool_that_is_named_like_a_definition_receives_none_of_its_calls() -> None:
    named_so = make_tool("odd", GET.definition_name)
    catalogue = _fleet(("web1", "one", GET), ("web2", "one", GET), ("odd", "two", named_so))

    assert _called(catalogue, GET.definition_name) == ["web1", "web2"]
    assert _called(catalogue, "odd:" + GET.definition_name) == ["odd"]


@pytest.mark.parametrize("name", ["get@", "@12345678", "get@1234567", "get@ffffffff", "get@GGGGGGGG"])
def test_a_name_with_no_known_digest_is_not_found(name: str) -> None:
    with pytest.raises(ToolNotFound, match="Nearest: web1:get"):
        _resolved(replicated(["web1", "web2"], GET), name)


# --- sets ---


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


def test_a_label_joins_servers_as_replicas_and_separates_them() -> None:
    stdio = Endpoint(transport="stdio")
    alike = [_record(server_id, "one", endpoint=stdio, labels={"replica_set": "a"}) for server_id in ("a", "b")]

    sets = _sets(records=(*alike, _record("c", "one", endpoint=stdio, labels={"replica_set": "c"})))

    assert sets.replicas("a") == ("a", "b")
    assert sets.replicas("c") == ("c",)
