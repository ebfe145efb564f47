"""No name of a tool goes around the policy: a server receives only the calls that the rules permit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitResult, ResourceLink, TextContent
from mcp_types import ErrorData

from query.answers.budget import ResponsePolicy
from query.caller import Caller
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue
from query.mcp import service_of
from query.records import Ledger
from query.tools.registry import BUILTIN_TOOLS
from shared.catalog import IndexedTool
from shared.toolset import Toolset
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.policies import RecordingServers, always, policy, recording_servers, rule
from tests.support.profiles import examples
from tests.support.replicated import put_server

DROP, READ = make_tool("", "drop"), make_tool("", "read", read_only=True)
# a1 and a2 are replicas; tools of b are called like those of others, with and without their servers
FLEET: Mapping[str, Sequence[IndexedTool]] = {
    "a1": [DROP, READ],
    "a2": [DROP, READ],
    "b": [make_tool("", "drop", "another one"), make_tool("", "a1__drop"), make_tool("", "a2:read", read_only=True)],
    "c": [READ],
}
NAMES = sorted({tool.definition.name for tools in FLEET.values() for tool in tools})
PLACES = [(server, tool.definition.name) for server, tools in FLEET.items() for tool in tools]
BUILT_IN = {handler.tool.name for handler in BUILTIN_TOOLS}
READ_ONLY = {"read", "a2:read"}
TOOLSET = "all"
CALLERS = (Caller("ann"), Caller("ann", toolset=TOOLSET), Caller("bob", frozenset({"mail"}), toolset=TOOLSET))

Conditions = dict[str, list[str]]
Rules = list[tuple[str, Conditions]]

# --- the rules, and their meaning in other words ---

_servers = st.lists(st.sampled_from([*FLEET, "a*", "*"]), min_size=1, max_size=2)
_tools = st.lists(st.sampled_from([*NAMES, "dr*", "*drop", "a*", "*"]), min_size=1, max_size=2)
_annotations = st.lists(st.sampled_from(["read_only", "not_read_only", "destructive"]), min_size=1, max_size=1)
_callers = st.lists(st.sampled_from(["ann", "b*"]), min_size=1, max_size=1)
_groups = st.lists(st.sampled_from(["mail", "*"]), min_size=1, max_size=1)
_conditions = st.fixed_dictionaries(
    {},
    optional={
        "servers": _servers,
        "tools": _tools,
        "annotations": _annotations,
        "callers": _callers,
        "groups": _groups,
    },
)
_rules: st.SearchStrategy[Rules] = st.lists(st.tuples(st.sampled_from(["deny", "deny", "ask", "allow"]), _conditions))


def decided(rules: Rules, caller: Caller, server: str, tool: str) -> str:
    """Return the action that the rules have for a call."""
    held = {"read_only"} if tool in READ_ONLY else {"not_read_only", "destructive"}
    groups = caller.groups or {"*"}
    for action, of in rules:
        if (
            _any(of.get("servers"), server)
            and _any(of.get("tools"), tool)
            and _any(of.get("callers"), caller.name)
            and held.intersection(of.get("annotations", held))
            and groups.intersection(of.get("groups", groups))
        ):
            return action
    return "allow"


def _any(patterns: Sequence[str] | None, name: str) -> bool:
    return patterns is None or any(_fits(name, *pattern.split("*")) for pattern in patterns)


def _fits(name: str, head: str, *tails: str) -> bool:
    return name.startswith(head) and name.endswith(tails[0]) if tails else name == head


# --- the ways to name a tool ---


Answer = Literal["accept", "decline", "cancel"]


@dataclass(frozen=True)
class Attempt:
    """A request, and its user's answer to a question; None: the client cannot ask."""

    method: str
    arguments: dict[str, Any]
    caller: Caller
    mode: str
    answer: Answer | None


def _forms(server: str, tool: str, digest: str) -> list[str]:
    joined = [f"{server}{joint}{tool}" for joint in (":", ".", "/", "__")]
    again = [f"{server}:{name}" for name in joined]
    return [tool, f"{tool}@{digest[:8]}", *joined, *again, tool.upper(), f" {tool}", f"{tool}\x00", f"{tool}*"]


def _digest(server: str, tool: str) -> str:
    return next(found.digest for found in FAKE.tools_named(server, tool))


@st.composite
def _calls(draw: st.DrawFn) -> dict[str, Any]:
    server, tool = draw(st.sampled_from(PLACES))
    name = draw(st.sampled_from(_forms(server, tool, _digest(server, tool))))
    request: dict[str, Any] = {draw(st.sampled_from(["tool_name", "name"])): name}
    if draw(st.booleans()):
        request["server_name"] = draw(st.sampled_from([server, *FLEET]))
    parameters = draw(st.sampled_from(["parameters", "arguments", "args"]))
    for _ in range(draw(st.integers(0, 2))):
        wrapper = draw(st.sampled_from([{}, {"tool_name": "call_tool"}, {"name": "call_tool"}]))
        request = {**wrapper, parameters: draw(st.sampled_from([request, json.dumps(request)]))}
    return request


class Fake(FakeIndex):
    """The fleet in an index; calls try a1 before its replica, whose list is stale."""

    def __init__(self) -> None:
        super().__init__()
        for server, tools in FLEET.items():
            stale = 1.0 if server == "a2" else None
            put_server(
                self, server, tools, protocol_version="2025-11-25", stale_since=stale, groups=frozenset({"mail"})
            )
        self.put_toolset(Toolset(name=TOOLSET, tools=tuple(FLEET)))

    def tools_named(self, server: str, tool: str) -> list[IndexedTool]:
        return self.find_by_name(f"{server}:{tool}", CALLERS[0].scope, 1)


FAKE = Fake()
DROP_NAME = FAKE.tools_named("a1", "drop")[0].definition_name


class Site:
    """A service over the fleet, whose rules change, and the links and cursors that callers got without rules."""

    def __init__(self, servers: RecordingServers, upstreams: Upstreams) -> None:
        self.servers, self.upstreams, self.rules = servers, upstreams, policy("")
        index = FAKE
        limits = ResponsePolicy(max_tokens=300)
        self.catalogue = Catalogue(
            index, FakeEmbedder(), Ledger(index), response_policy=limits, read_policy=lambda: self.rules
        )
        self.links: dict[tuple[str, str, str], str] = {}
        self.cursors: list[str] = []
        self.direct: list[str] = []
        anyio.run(self._collect)

    async def _collect(self) -> None:
        for caller in CALLERS[1:]:
            async with Client(service_of(self.catalogue, self.upstreams, always(caller))) as client:
                self.direct = await direct_names(client)
                for server, tool in PLACES:
                    request = {"tool_name": f"{server}:{tool}", "server_name": server}
                    result = await client.call_tool("call_tool", request)
                    self._keep(caller.name, server, tool, result)

    def _keep(self, caller: str, server: str, tool: str, result: CallToolResult) -> None:
        for block in result.content:
            if isinstance(block, ResourceLink):
                self.links[caller, server, tool] = block.uri
            elif isinstance(block, TextContent) and "nextCursor" in block.text:
                self.cursors.append(json.loads(block.text)["nextCursor"])

    def attempt(self, attempt: Attempt) -> list[tuple[str, str]]:
        """Make a request, and return the calls and reads that it caused."""
        self.servers.received.clear()
        anyio.run(self._attempt, attempt)
        return list(self.servers.received)

    async def _attempt(self, attempt: Attempt) -> None:
        async def answer(context: Any, params: Any) -> ElicitResult | ErrorData:
            assert attempt.answer is not None
            return ElicitResult(action=attempt.answer, content={})

        service = service_of(self.catalogue, self.upstreams, lambda _: attempt.caller)
        user = answer if attempt.answer else None
        async with Client(service, mode=attempt.mode, elicitation_callback=user) as client:
            try:
                if attempt.method == "resources/read":
                    await client.read_resource(attempt.arguments["uri"])
                else:
                    await client.call_tool(attempt.method, attempt.arguments)
            except MCPError:
                return


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    text = "one two three four " * 200
    with recording_servers(FLEET, text) as servers:
        upstreams = upstreams_to(servers.targets)
        yield Site(servers, upstreams)


async def direct_names(client: Client) -> list[str]:
    """Return the names of the toolset's tools in `tools/list`."""
    names, page = list[str](), await client.list_tools()
    while True:
        names += [tool.name for tool in page.tools if tool.name not in BUILT_IN]
        if page.next_cursor is None:
            return names
        page = await client.list_tools(cursor=page.next_cursor)


def _written(rules: Rules) -> str:
    return "".join(rule(action, **conditions) for action, conditions in rules)


@settings(max_examples=examples(200))
@example([("deny", {"servers": ["a1"]})], ("call", {"tool_name": "drop"}, 0), 0, "auto", "")
@example([("deny", {"servers": ["a1"]})], ("call", {"tool_name": DROP_NAME}, 0), 0, "auto", "")
@example([("deny", {})], ("direct", {}, 0), 1, "legacy", "accept")
@example([("deny", {"tools": ["read"]})], ("read", {}, 1), 2, "auto", "")
@example([("ask", {})], ("call", {"tool_name": "a1:drop"}, 0), 2, "auto", "accept")
@given(
    rules=_rules,
    request=st.tuples(
        st.sampled_from(["call", "call", "call", "direct", "direct", "read", "cursor"]), _calls(), st.integers(0, 50)
    ),
    caller=st.integers(0, len(CALLERS) - 1),
    mode=st.sampled_from(["auto", "legacy"]),
    answer=st.sampled_from([None, *get_args(Answer)]),
)
def test_a_server_receives_only_calls_that_the_rules_permit(
    site: Site, rules: Rules, request: tuple[str, dict[str, Any], int], caller: int, mode: str, answer: Answer | None
) -> None:
    kind, call, number = request
    who = CALLERS[caller]
    site.rules = policy(_written(rules))
    attempt = Attempt("call_tool", call, who, mode, answer)
    server, tool = "", ""
    match kind:
        case "direct":
            attempt = replace(attempt, method=site.direct[number % len(site.direct)], arguments={})
        case "cursor":
            attempt = replace(attempt, arguments={**call, "cursor": site.cursors[number % len(site.cursors)]})
        case "read":
            (_, server, tool), uri = list(site.links.items())[number % len(site.links)]
            attempt = replace(attempt, method="resources/read", arguments={"uri": uri})
        case _:
            pass

    received = site.attempt(attempt)

    permitted = {"allow", "ask"} if answer == "accept" else {"allow"}
    assert len(received) <= 1
    for where, called in received:
        if called == "resources/read":
            assert kind == "read"
            assert where == server
            assert decided(rules, who, server, tool) != "deny"
        else:
            assert decided(rules, who, where, called) in permitted
    assert kind != "cursor" or not received


@settings(max_examples=examples(40))
@given(rules=_rules, caller=st.integers(0, len(CALLERS) - 1), mode=st.sampled_from(["auto", "legacy"]))
def test_every_permitted_call_is_sent_and_no_other(site: Site, rules: Rules, caller: int, mode: str) -> None:
    site.rules, who = policy(_written(rules)), CALLERS[caller]

    for server, tool in PLACES:
        request = {"tool_name": f"{server}:{tool}", "server_name": server}
        received = site.attempt(Attempt("call_tool", request, who, mode, "accept"))

        # an older client can be asked through the proxy alone
        refused = ("deny", "ask") if mode == "legacy" else ("deny",)
        is_sent = decided(rules, who, server, tool) not in refused
        assert received == ([(server, tool)] if is_sent else [])


@settings(max_examples=examples(40))
@given(rules=_rules, caller=st.integers(1, len(CALLERS) - 1))
def test_a_toolset_lists_exactly_the_tools_that_a_server_may_receive(site: Site, rules: Rules, caller: int) -> None:
    site.rules, who = policy(_written(rules)), CALLERS[caller]

    async def listed() -> list[str]:
        async with Client(service_of(site.catalogue, site.upstreams, lambda _: who)) as client:
            return await direct_names(client)

    permitted = {
        (server[0], tool)  # a1 and a2 are one tool of the list
        for server, tool in PLACES
        if decided(rules, who, server, tool) != "deny"
    }
    assert len(anyio.run(listed)) == len(permitted)
