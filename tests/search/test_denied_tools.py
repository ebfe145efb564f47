"""Tools that the policy denies are in no answer and no sum of their caller, for any fleet and any policy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from query.answers.answer import FoundTool
from query.caller import PERMISSIONS, Caller
from query.catalogue import Catalogue
from query.digest import NO_SERVER, Digests
from query.find import FindTool
from query.policy import Policy, policy_reader
from query.records import Ledger
from query.search.request import FindRequest
from query.tools.describe_tool import DescribeRequest, DescribeTool
from query.tools.list_available_tools import ListAvailableTools, ListRequest
from shared.catalog import DEFAULT_ENCODING, IndexedTool, ToolDefinition
from shared.errors import IndexUnavailable
from shared.settings import load_settings
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.http_callers import entry, static
from tests.support.policies import policy, rule
from tests.support.profiles import examples
from tests.support.replicated import put_server
from tests.support.running_api import running_api

ANN = Caller("ann", frozenset({"dev"}))
CALLERS = (ANN, Caller("bob"), Caller("anyone"))
NAMES = ("read_file", "delete_file", "list", "delete", "a1:list")
SERVERS = ("a1", "a2", "mail", "mail-2")
ENCODING = DEFAULT_ENCODING

Fleet = Mapping[str, list[IndexedTool]]


def hinted(name: str, tokens: int, hints: dict[str, bool]) -> IndexedTool:
    """Return a tool with these annotations."""
    tool = make_tool("", name, f"{name} of something", tokens)
    declared = {**tool.definition.as_object(), **({"annotations": hints} if hints else {})}
    return replace(tool, definition=ToolDefinition.from_wire(json.dumps(declared)))


hints = st.dictionaries(st.sampled_from(["readOnlyHint", "destructiveHint", "openWorldHint"]), st.booleans())
lists = st.lists(
    st.builds(hinted, st.sampled_from(NAMES), st.integers(0, 40), hints),
    min_size=1,
    max_size=4,
    unique_by=lambda tool: tool.definition.name,
)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Draw the tools of some servers; a1 and a2 are replicas."""
    own = {server_id: draw(lists) for server_id in draw(st.lists(st.sampled_from(SERVERS), unique=True))}
    if "a1" in own and "a2" in own:
        own["a2"] = own["a1"]
    return own


patterns = {
    "servers": st.sampled_from([*SERVERS, "a*", "*", "nobody"]),
    "tools": st.sampled_from([*NAMES, "*delete*", "[lr]*", "*", "none"]),
    "annotations": st.sampled_from(["read_only", "not_read_only", "destructive", "open_world", "closed_world"]),
    "callers": st.sampled_from(["ann", "b*"]),
    "groups": st.sampled_from(["dev", "*"]),
}
conditions = st.fixed_dictionaries(
    {}, optional={name: st.lists(of, min_size=1, max_size=2) for name, of in patterns.items()}
)
policies = st.lists(st.tuples(st.sampled_from(["deny", "deny", "ask", "allow"]), conditions), max_size=5).map(
    lambda rules: policy("".join(rule(action, **each) for action, each in rules))
)


@dataclass
class Site:
    """A service over a fleet with a policy, and the tools that the policy does not deny, by server and name."""

    fleet: Fleet
    policy: Policy
    caller: Caller

    def __post_init__(self) -> None:
        self.index = FakeIndex()
        for number, (server_id, tools) in enumerate(self.fleet.items(), 1):
            declared = server_id.rstrip("12")
            put_server(self.index, server_id, tools, declared, frozenset({"dev"}), revision=number)
        self.catalogue = Catalogue(
            self.index,
            FakeEmbedder(),
            Ledger(self.index),
            no_match_threshold=-1,
            read_policy=lambda: self.policy,
        )

    @property
    def permitted(self) -> dict[tuple[str, str], IndexedTool]:
        rules = self.policy.of(self.caller)
        stored = [each.tool for each in self.index.points().values()]
        kept = [tool for tool in stored if rules.action(tool.server_id, tool.definition) != "deny"]
        return {(tool.server_id, tool.definition.name): tool for tool in kept}

    def found(self, limit: int = 3) -> Iterator[tuple[str, str]]:
        """Yield the tools of all pages of a search, each with its first server."""
        cursor, find = None, FindTool(self.catalogue)
        for _ in range(50):
            request = FindRequest(tool_description="delete or read a file", limit=limit, cursor=cursor)
            answer = find.respond(request, self.caller)
            for tool in map(FoundTool.model_validate, answer["tools"]):
                yield tool.first_server
                if tool.served_by:
                    yield from ((server_id, tool.first_server[1]) for server_id in tool.served_by.servers)
            if (cursor := answer.get("nextCursor")) is None:
                return

    def listed(self) -> Iterator[tuple[str, str]]:
        """Yield the tools of all pages of the list."""
        cursor, listing = None, ListAvailableTools(self.catalogue)
        while True:
            page: dict[str, Any] = listing.respond(ListRequest(max_tokens=300, cursor=cursor), self.caller)
            for server in page["toolsByServer"]:
                yield from ((server["serverName"], name) for name in shlex.split(server["names"]))
            if (cursor := page.get("nextCursor")) is None:
                return


def digests_of(tools: Mapping[tuple[str, str], IndexedTool]) -> set[str]:
    return {tool.digest for tool in tools.values()}


DELETES = [hinted("delete_file", 10, {}), hinted("read_file", 20, {"readOnlyHint": True})]


@settings(max_examples=examples(150))
@example(fleet={"a1": DELETES, "a2": DELETES}, of=policy(rule(servers=["a1"])), caller=ANN)
@example(fleet={"a1": DELETES, "a2": DELETES}, of=policy(rule(servers=["a2"], tools=["*delete*"])), caller=ANN)
@example(
    fleet={"a1": DELETES, "a2": DELETES},
    of=policy(rule(servers=["a1"], tools=["delete_file"]) + rule(servers=["a2"], tools=["read_file"])),
    caller=ANN,
)
@example(fleet={"mail": DELETES}, of=policy(rule("ask", annotations=["read_only"]) + rule()), caller=ANN)
@given(fleet=fleets(), of=policies, caller=st.sampled_from(CALLERS))
def test_what_is_found_listed_described_and_counted_is_what_the_policy_does_not_deny(
    fleet: Fleet, of: Policy, caller: Caller
) -> None:
    site = Site(fleet, of, caller)
    permitted, ledger = site.permitted, site.catalogue.ledger
    found, listed, scope = set(site.found()), set(site.listed()), site.catalogue.scope(caller)

    for shown in (found, listed):
        assert shown <= permitted.keys()
        assert digests_of({key: permitted[key] for key in shown}) == digests_of(permitted)
    every = [f"{server_id}:{tool.definition.name}" for server_id, tools in fleet.items() for tool in tools]
    described = DescribeTool(site.catalogue).respond(DescribeRequest(names=every), caller)["tools"] if every else ()
    assert len(described) == len(permitted)

    tokens = sum(tool.token_counts[ENCODING] for tool in permitted.values())
    baseline, by_server = ledger.baseline(scope, ENCODING), ledger.by_server(scope, ENCODING)
    assert (baseline.tools, baseline.tokens) == (len(permitted), tokens)
    assert sum(each.tokens for each in by_server.values()) == tokens
    servers = {server_id for server_id, _ in permitted}
    assert {server_id for server_id, each in by_server.items() if each.tools} == servers

    digest = Digests(site.catalogue).of(caller)
    assert digest.text == f"Servers: {'; '.join(sorted(servers))}." if permitted else digest is NO_SERVER


def test_savings_are_claimed_against_permitted_tools_alone() -> None:
    site = Site({"mail": DELETES}, policy(rule("ask", tools=["read*"]) + rule()), ANN)

    find, request = FindTool(site.catalogue), FindRequest(tool_description="delete a file")

    answer = find.respond(request, ANN)

    assert [tool["name"] for tool in answer["tools"]] == ["mail:read_file"]
    assert answer["token_metrics"]["baseline_tokens"] == answer["token_metrics"]["returned_tokens"] == 20
    site.policy = policy("")
    assert find.respond(request, ANN)["token_metrics"]["baseline_tokens"] == 30


def test_a_changed_policy_file_and_a_changed_fleet_take_effect_with_the_next_search(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(rule(tools=["*delete*"]))
    site = Site({"mail": DELETES}, policy(""), ANN)
    site.catalogue = replace(site.catalogue, read_policy=policy_reader(load_settings(policy_file=path)))
    find = FindTool(site.catalogue)

    def found() -> list[str]:
        answer = find.respond(FindRequest(tool_description=["delete a file", "read it"]), ANN)
        return sorted(tool["name"] for tool in answer["tools"])

    assert found() == ["mail:read_file"]
    put_server(site.index, "disk", [hinted("delete_all", 5, {})], "disk", frozenset({"dev"}), revision=9)
    assert found() == ["mail:read_file"]
    path.write_text(rule(servers=["disk"]))
    assert found() == ["mail:delete_file", "mail:read_file"]
    path.write_text(rule(groups=["ops"]))
    assert found() == ["disk:delete_all", "mail:delete_file", "mail:read_file"]


def test_a_tool_that_is_written_before_its_server_s_record_is_denied_at_once() -> None:
    site = Site({"mail": DELETES}, policy(rule(tools=["*mail"]) + rule(servers=["disk*"])), ANN)
    assert ("mail", "delete_file") in set(site.found())

    for server, name in (("mail", "delete_mail"), ("disk", "delete_disk")):
        site.index.upsert([ingested(make_tool(server, name, "delete or read a file", groups=("dev",)), FakeEmbedder())])

    for answer in (set(site.found()), set(site.listed())):
        assert answer.isdisjoint({("mail", "delete_mail"), ("disk", "delete_disk")})


def test_where_a_server_changes_only_its_tools_are_summed_again() -> None:
    site = Site({"mail": DELETES, "disk": DELETES}, policy(rule(tools=["*delete*"])), ANN)
    ledger = site.catalogue.ledger
    before = ledger.baseline(site.catalogue.scope(ANN), DEFAULT_ENCODING)

    put_server(site.index, "disk", [hinted("read_all", 5, {})], "disk", frozenset({"dev"}), revision=9)
    with patch.object(site.index, "counts", wraps=site.index.counts) as counts:
        after = ledger.baseline(site.catalogue.scope(ANN), DEFAULT_ENCODING)

    assert [call.args[0].servers for call in counts.call_args_list] == [frozenset({"disk"})]
    assert after.tokens != before.tokens
    assert after == Ledger(site.index).baseline(site.catalogue.scope(ANN), DEFAULT_ENCODING)


def test_equal_rules_read_the_index_once_until_a_server_changes() -> None:
    site = Site({"mail": DELETES}, policy(rule(tools=["*delete*"])), ANN)
    first = site.catalogue.scope(ANN)

    assert site.catalogue.scope(Caller("bob")).rules is first.rules
    put_server(site.index, "disk", [hinted("delete_all", 5, {})], "disk", frozenset({"dev"}), revision=9)
    (denial,) = site.catalogue.scope(ANN).rules
    assert denial.names == frozenset({"delete_file", "delete_all"})


def test_a_scope_that_cannot_be_read_is_an_error_and_not_a_scope_with_all_tools() -> None:
    site = Site({"mail": DELETES}, policy(rule(tools=["*delete*"])), ANN)
    site.index.is_down = True

    with pytest.raises(IndexUnavailable):
        site.catalogue.scope(ANN)


def test_the_operator_sees_denied_tools_in_the_api_and_other_callers_do_not(tmp_path: Path) -> None:
    index = FakeIndex()
    put_server(index, "mail", DELETES, "mail", frozenset({"dev"}))
    put_server(index, "files", [hinted("delete", 5, {})], "files", frozenset({"dev"}), revision=2)
    reading = sorted(PERMISSIONS - {"operate"})
    tokens = static(tmp_path / "tokens.toml", root=entry("root"), ann=entry("ann", permissions=reading))
    denied = policy(rule(tools=["*delete*"]))

    def read(http: httpx2.Client, caller: str, path: str) -> httpx2.Response:
        return http.get(path, headers={"authorization": f"Bearer {caller}"})

    with (
        running_api(tmp_path, index, tokens, lambda: denied) as url,
        httpx2.Client(base_url=url, trust_env=False, timeout=30) as http,
    ):
        of_root, of_ann = (read(http, name, "/api/servers/mail").json() for name in ("root", "ann"))
        servers = {name: read(http, name, "/api/servers").json()["servers"] for name in ("root", "ann")}
        hidden = read(http, "ann", "/api/servers/files")

    assert [[tool["name"] for tool in each["tools"]] for each in (of_root, of_ann)] == [
        ["read_file", "delete_file"],
        ["read_file"],
    ]
    assert (of_root["tokens"], of_ann["tokens"]) == (30, 20)
    assert [[row["server_id"] for row in rows] for rows in servers.values()] == [["files", "mail"], ["mail"]]
    assert hidden.status_code == 404
