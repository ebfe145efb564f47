"""Fleets whose servers share tools: find_tool and its baseline equal a count of the visible tools by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from query.answers.answer import FindResponse, FoundTool, ServedBy
from query.answers.budget import ResponsePolicy
from query.calling.tool_lookup import resolve_tool_name
from query.catalogue import Catalogue
from query.find import find_tool
from query.records import Ledger
from query.search.request import FindRequest
from shared.catalog import Endpoint, IndexedTool, Scope, Selection, Status, catalog_digest, digest, point_id
from shared.index.tools import ToolIndex
from tests.support.fakes import DIMENSION, FakeEmbedder, FakeIndex, make_tool
from tests.support.indexes import open_edge
from tests.support.profiles import examples
from tests.support.replicated import put_server

SERVERS = tuple(f"s{number}" for number in range(6))
DECLARED = ("web", "files", "")
GROUPS = ("red", "blue")
# the last ones read as names of other tools
NAMES = ("read", "list", "s1:read", "read@0123abcd", "s2.read", "s2__list")
VERSIONS = range(3)
POLICY = ResponsePolicy()

Definition = tuple[str, int]
"""The name and the version of a definition."""


def tool_of(name: str, version: int) -> IndexedTool:
    """Return a tool whose definition costs more than its summary, and as much as no other one."""
    tokens = 100 + 2 ** (len(VERSIONS) * NAMES.index(name) + version)
    return make_tool("", name, f"{name} of version {version}", tokens, read_only=version == 0)


@dataclass(frozen=True)
class Server:
    """A server of a random fleet; an unsettled one is being changed, so its record has no catalog digest."""

    server_id: str
    declared_name: str
    definitions: frozenset[Definition]
    groups: frozenset[str] = frozenset()
    status: Status = "running"
    is_settled: bool = True
    path: str = "/mcp"

    @property
    def tools(self) -> list[IndexedTool]:
        return [self._own(tool_of(*definition)) for definition in sorted(self.definitions)]

    def _own(self, tool: IndexedTool) -> IndexedTool:
        own_digest = digest(tool.definition, self.declared_name)
        return replace(tool, server_id=self.server_id, digest=own_digest, groups=self.groups, status=self.status)


@dataclass(frozen=True)
class Fleet:
    """Servers, and the definitions whose digests an audit has cleared."""

    servers: Sequence[Server]
    cleared: frozenset[Definition] = frozenset()

    def write(self, index: ToolIndex) -> None:
        for server in self.servers:
            index.delete(server.server_id, index.tool_states(server.server_id))
            endpoint = Endpoint(url=f"http://{server.server_id}.example{server.path}")
            record: dict[str, object] = {"status": server.status, "endpoint": endpoint}
            record |= {} if server.is_settled else {"catalog_digest": ""}
            put_server(index, server.server_id, server.tools, server.declared_name, server.groups, **record)
            index.set_status_and_groups(server.server_id, status=server.status, groups=server.groups)
        index.clear_digests(self.cleared_digests)

    @property
    def cleared_digests(self) -> set[str]:
        return {digest(tool_of(*cleared).definition, name) for cleared in self.cleared for name in DECLARED}


catalogues = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VERSIONS), max_size=3).map(
    lambda catalogue: frozenset(catalogue.items())
)
kinds = st.tuples(st.sampled_from(DECLARED), catalogues)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Draw servers of a few kinds, or each of a kind of its own, so that there are replicas and relatives."""
    common = st.sampled_from(draw(st.lists(kinds, min_size=1, max_size=3)))
    servers = [
        Server(
            server_id,
            *draw(common | common | kinds),
            groups=draw(st.frozensets(st.sampled_from(GROUPS))),
            status=draw(st.sampled_from(("running",) * 4 + ("stopped",))),
            is_settled=draw(st.sampled_from((True,) * 4 + (False,))),
            path=draw(st.sampled_from(("/mcp",) * 5 + ("/other",))),
        )
        for server_id in SERVERS
    ]
    definitions = sorted({definition for server in servers for definition in server.definitions})
    none = st.just(frozenset[Definition]())
    cleared = st.frozensets(st.sampled_from(definitions), max_size=2) if definitions else none
    return Fleet(servers, draw(none | cleared))


servers = st.sampled_from(SERVERS)
definition_names = st.sampled_from(
    [
        replace(tool_of(name, version), digest=digest(tool_of(name, version).definition, declared)).definition_name
        for name, version, declared in product(NAMES, VERSIONS, DECLARED)
    ]
)
qualified = st.builds("{}:{}".format, servers, st.sampled_from(NAMES))
selections = st.builds(Selection, st.frozensets(servers), st.frozensets(qualified))
scopes = st.builds(
    Scope, groups=st.none() | st.frozensets(st.sampled_from(GROUPS)), within=st.none() | st.none() | selections
)
narrowings = st.fixed_dictionaries(
    {"limit": st.integers(1, 5), "detail": st.sampled_from(("auto", "full", "summary"))},
    optional={
        "servers": st.lists(servers, min_size=3),
        "groups": st.lists(st.sampled_from(GROUPS), min_size=1),
        "exclude": st.lists(qualified | st.sampled_from(NAMES) | definition_names, max_size=2),
        "read_only": st.booleans(),
    },
)


@dataclass(frozen=True)
class Visible:
    """The tools of a fleet in a scope, by hand."""

    fleet: Fleet
    scope: Scope
    excluded_digests: frozenset[str] = frozenset()

    def servers_by_definition(self) -> Mapping[object, list[str]]:
        """Return the servers of each visible definition, sorted."""
        found: defaultdict[object, list[str]] = defaultdict(list)
        for server, tool in self._tools():
            found[self.identity(server, tool)].append(server.server_id)
        return found

    def paths(self, identity: object) -> set[str]:
        """Return the paths of the visible servers with this definition."""
        return {server.path for server, tool in self._tools() if self.identity(server, tool) == identity}

    def versions(self, declared_name: str, name: str) -> int:
        """Return the number of visible definitions with this name, on servers of this declared name, if it is one."""
        if not declared_name:
            return 1
        return len(
            {
                self.identity(server, tool)
                for server, tool in self._tools()
                if (server.declared_name, tool.definition.name) == (declared_name, name)
            }
        )

    def tokens(self) -> int:
        return sum(tool.token_counts["cl100k_base"] for _, tool in self._tools())

    def identity(self, server: Server, tool: IndexedTool) -> object:
        """Return the same value for equal definitions; without a digest, only replicas have equal definitions."""
        is_cleared = tool.digest in self.fleet.cleared_digests
        return (self._replica_set(server), tool.definition.name) if is_cleared else tool.digest

    def _tools(self) -> list[tuple[Server, IndexedTool]]:
        return [
            (server, tool)
            for server in self.fleet.servers
            for tool in server.tools
            if self._admits(tool) and not self._is_excluded(server, tool)
        ]

    def digests(self, names: Collection[str]) -> frozenset[str]:
        """Return the digests, where they are known, of the visible tools with these qualified names or digests."""
        return frozenset(
            tool.digest
            for _, tool in self._tools()
            if not {tool.qualified_name, tool.definition_name}.isdisjoint(names)
        ).difference(self.fleet.cleared_digests)

    def _admits(self, tool: IndexedTool) -> bool:
        scope, within = self.scope, self.scope.within
        return (
            tool.status == "running"
            and (scope.groups is None or not scope.groups.isdisjoint(tool.groups))
            and (scope.servers is None or tool.server_id in scope.servers)
            and (tool.definition.read_only or not scope.read_only)
            and (within is None or within.admits(tool.server_id, tool.definition.name))
        )

    def _is_excluded(self, server: Server, tool: IndexedTool) -> bool:
        """Return whether the definition is excluded, or the tool, here or on a replica that the scope contains."""
        name = tool.definition.name
        replicas = [
            other.server_id for other in self.fleet.servers if self._replica_set(other) == self._replica_set(server)
        ]
        names = {name, *(f"{replica}:{name}" for replica in replicas)}
        return tool.digest in self.excluded_digests or not self.scope.exclude.isdisjoint(names)

    def _replica_set(self, server: Server) -> str:
        """Return the catalog digest of a server that the scope contains as a whole, else its id."""
        within = self.scope.within
        is_whole = self.scope_contains(server) and (within is None or server.server_id in within.servers)
        digests = {tool.definition.name: tool.digest for tool in server.tools}
        return catalog_digest(digests) + server.path if is_whole and server.is_settled else server.server_id

    def scope_contains(self, server: Server) -> bool:
        scope = self.scope
        return (
            server.status == "running"
            and (scope.groups is None or not scope.groups.isdisjoint(server.groups))
            and (scope.servers is None or server.server_id in scope.servers)
        )


def pages(index: ToolIndex, allowed: Scope, narrowing: Mapping[str, Any]) -> list[FindResponse]:
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=-1, response_policy=POLICY)
    found: list[FindResponse] = []
    cursor: str | None = None
    while not found or cursor:
        request = request_of(narrowing).model_copy(update={"cursor": cursor})
        answer, _ = find_tool(request, allowed, catalogue)
        found.append(answer)
        cursor = answer.next_cursor
        assert len(found) <= len(SERVERS) * len(NAMES), "pages that repeat tools would never end"
    return found


def request_of(narrowing: Mapping[str, Any]) -> FindRequest:
    return FindRequest.model_validate({"tool_description": "read a list", **narrowing})


def assert_found_by_hand(fleet: Fleet, visible: Visible, found: Sequence[FoundTool], allowed: Visible) -> None:
    servers_by_definition = visible.servers_by_definition()
    definitions: list[object] = []
    for tool in found:
        server_id, name = tool.first_server
        (server,) = (server for server in fleet.servers if server.server_id == server_id)
        (own,) = (own for own in server.tools if own.definition.name == name)
        definitions.append(visible.identity(server, own))
        servers = servers_by_definition[definitions[-1]]
        # no other name stands for an ambiguous tool without a digest; a name with a colon has its server anyway
        if own.digest in fleet.cleared_digests and ":" not in name and tool.name == own.qualified_name:
            servers = [server_id]
        others = [server for server in servers if server != server_id]
        if ":" in name or (own.digest not in fleet.cleared_digests and len(allowed.paths(own.digest)) > 1):
            assert tool.name == own.qualified_name
            servers = [server_id]
            also_on = tool.also_on or ServedBy(count=0, servers=[])
            assert (also_on.count, also_on.servers) == (len(others), others[:3])
        served = tool.served_by.model_dump() if tool.served_by else {"count": 1, "servers": [server_id]}
        assert served == {"count": len(servers), "servers": servers[:3]}
        assert (tool.versions or 1) == visible.versions(server.declared_name, name)
    assert len(definitions) == len(set(definitions))
    assert set(definitions) == servers_by_definition.keys()


def assert_resolved(index: ToolIndex, allowed: Scope, found: Sequence[FoundTool]) -> None:
    """Check that call_tool finds the shown definition by its name, on at least the shown servers."""
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index))
    for tool in found:
        server_id, name = tool.first_server
        resolved = resolve_tool_name(tool.name, allowed, catalogue)
        (shown,) = index.get([point_id(server_id, name)]).values()
        assert resolved.tool.definition == shown.definition
        assert set(resolved.server_ids) >= set(tool.served_by.servers if tool.served_by else [server_id])


def check(index: ToolIndex, fleet: Fleet, allowed: Scope, narrowing: Mapping[str, Any]) -> None:
    fleet.write(index)

    answers = pages(index, allowed, narrowing)

    found = [tool for answer in answers for tool in answer.tools]
    assert len({tool.name for tool in found}) == len(found)
    baseline = Visible(fleet, allowed)
    excluded = baseline.digests(narrowing.get("exclude", ()))
    assert_found_by_hand(fleet, Visible(fleet, request_of(narrowing).narrow(allowed), excluded), found, baseline)
    assert_resolved(index, allowed, found)
    tokens = baseline.tokens()
    assert all(answer.token_metrics.baseline_tokens == tokens for answer in answers)


REPLICAS = Fleet([Server(server_id, "web", frozenset({("read", 0), ("list", 1)})) for server_id in SERVERS])
UNSETTLED = Fleet(
    [
        *(
            Server(server_id, "files", frozenset({("list", 1)}), is_settled=server_id != "s4")
            for server_id in SERVERS[:5]
        ),
        Server("s5", "files", frozenset({("list", 0)})),
    ]
)
CLEARED = Fleet(
    [Server(server_id, "web", frozenset({("s1:read", 0)})) for server_id in SERVERS], frozenset({("s1:read", 0)})
)
AMBIGUOUS = Fleet([*REPLICAS.servers[:5], Server("s5", "files", frozenset({("read", 1)}))])


@given(fleet=fleets(), allowed=scopes, narrowing=narrowings)
@example(REPLICAS, Scope(), {"limit": 1, "detail": "summary"})
@example(REPLICAS, Scope(), {"limit": 5, "detail": "full", "exclude": ["s3:read"]})
@example(AMBIGUOUS, Scope(), {"limit": 5, "detail": "full", "exclude": ["s5:read"]})
@example(CLEARED, Scope(), {"limit": 1, "detail": "auto"})
@example(UNSETTLED, Scope(), {"limit": 1, "detail": "auto", "exclude": ["s0:list"]})
@example(AMBIGUOUS, Scope(within=Selection(frozenset({"s1", "s5"}), frozenset({"s2:read"}))), {"detail": "auto"})
def test_answers_and_baselines_equal_a_count_by_hand(
    fleet: Fleet, allowed: Scope, narrowing: Mapping[str, Any]
) -> None:
    check(FakeIndex(), fleet, allowed, narrowing)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolIndex]:
    with closing(open_edge(tmp_path_factory.mktemp("index"), "tools", DIMENSION)) as index:
        yield index


@settings(max_examples=examples(15))
@given(fleet=fleets(), allowed=scopes, narrowing=narrowings)
@example(REPLICAS, Scope(), {"limit": 1, "detail": "summary"})
def test_answers_and_baselines_of_a_real_index_equal_a_count_by_hand(
    edge: ToolIndex, fleet: Fleet, allowed: Scope, narrowing: Mapping[str, Any]
) -> None:
    check(edge, fleet, allowed, narrowing)
