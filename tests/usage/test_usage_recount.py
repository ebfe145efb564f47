"""The savings report equals a recount of the messages that left, for any mix of lists, answers and calls."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ResourceLink, TextContent, TextResourceContents

from query.answers.budget import ResponsePolicy
from query.caller import Caller
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue, recorded
from query.mcp import service_of
from query.records import Ledger
from query.toolsets.offers import with_toolset_scope
from query.usage.report import SavingsReport, report_for
from query.usage.store_redis import RedisUsage
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import Usage
from shared.catalog import IndexedTool, ToolDefinition
from shared.text.tokens import count_forms, counter, counters
from shared.toolset import Toolset
from shared.upstream.target import HttpTarget
from tests.support.calling import upstreams_to
from tests.support.fake_redis import FakeRedisServer
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of
from tests.support.hostile.messages import initialized, result
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.profiles import examples
from tests.support.wire import Message, exchanges, recorded_client

COUNT = counter("cl100k_base")
COUNT_FORMS = counters()
VERBS = ("read", "write", "send", "list")
# `up` answers calls, `down` refuses connections
FLEET: Mapping[str, Sequence[str]] = {"up": ("team",), "down": ("team", "other"), "mail": ("other",)}
CALLERS = (
    Caller("root"),
    Caller("ann", frozenset({"team"})),
    Caller("dev", toolset="dev"),
    Caller("weak", frozenset({"other"}), frozenset({"catalog:read"})),
)
REPLICAS = 2


def definition(server: str, verb: str) -> Message:
    """Return a tool in the order of keys of some server, with fields that no model receives."""
    schema: Message = {"type": "object", "properties": {"length": {"type": "integer", "description": f"of {server}"}}}
    if (server, verb) == ("up", "send"):
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    title = {"title": f"{verb.capitalize()} é"}
    return {"inputSchema": schema, **title, "name": f"{verb}_it", "description": f"{verb} what {server} has " * 9}


def indexed(server: str, verb: str) -> IndexedTool:
    declared = ToolDefinition.from_wire(json.dumps(definition(server, verb), ensure_ascii=False, separators=(",", ":")))
    wire, model = count_forms(declared, COUNT_FORMS)
    made = make_tool(server, declared.name, groups=FLEET[server])
    return IndexedTool(server, declared, made.digest, wire, made.groups, model_counts=model)


TOOLS = [indexed(server, verb) for server in FLEET for verb in VERBS]


def index() -> FakeIndex:
    made = index_of(*TOOLS, protocol_version="2025-11-25")
    made.put_toolset(Toolset(name="dev", tools=("up", "mail:send_it")))
    return made


def visible_to(caller: Caller) -> list[tuple[str, str]]:
    """Return the servers and verbs of the tools that the caller may see."""
    tools = [(server, verb) for server in FLEET for verb in VERBS]
    if caller.toolset:
        return [tool for tool in tools if tool[0] == "up" or tool == ("mail", "send")]
    return [tool for tool in tools if caller.groups is None or not caller.groups.isdisjoint(FLEET[tool[0]])]


def visible(caller: Caller) -> list[Message]:
    return [definition(*tool) for tool in visible_to(caller)]


# --- the upstream: its texts are made of u and spaces, so that a recount can tell them from ours ---


def upstream(exchange: Exchange) -> None:
    if exchange.method == "initialize":
        exchange.send_json(initialized(exchange.request_json))
    elif exchange.method == "tools/call":
        exchange.send_json(result(exchange.request_json, called(exchange.request_json["params"])))
    elif exchange.method == "resources/read":
        uri = exchange.request_json["params"]["uri"]
        exchange.send_json(result(exchange.request_json, {"contents": [{"uri": uri, "text": "uuu " * len(uri) ** 2}]}))
    else:
        exchange.send(202 if exchange.command == "POST" else 405)


def called(params: Message) -> Message:
    text = "uuu " * params["arguments"].get("length", 1)
    if params["name"] == "list_it":
        return {"content": [], "structuredContent": {"u": text}}
    link = {"type": "resource_link", "name": "u", "uri": "u:" + "u" * params["arguments"].get("linked", 0)}
    links = [link] if "linked" in params["arguments"] else []
    return {"content": [{"type": "text", "text": text}, *links], "isError": params["name"] == "write_it"}


def is_upstreams(text: str) -> bool:
    return set(text) <= set('u {}":')


def own_texts(block: Message) -> list[str]:
    """Return what Toolscale wrote of a block: a text, or the part of a link before the URI of the upstream."""
    held = block.get("resource", block)
    links = [held["uri"].rpartition("u:")[0]] if "uri" in held else []
    return [*links, *(text for text in [held.get("text", "")] if not is_upstreams(text))]


# --- the recount ---

FOR_MODEL = ("name", "description", "inputSchema")
OURS = (
    "find_tool",
    "describe_tool",
    "call_tool",
    "run_script",
    "list_available_tools",
    "get_active_toolset",
    "get_savings_report",
)
STATED = ("net_tokens_saved", "baseline_tokens", "listed_tokens", "answer_tokens", "contexts", "tokens_saved",
          "searches", "found_nothing", "inner_tokens", "tokens_kept_out")  # fmt: skip


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def for_model(tool: Message) -> str:
    return compact({key: value for key, value in tool.items() if key in FOR_MODEL})


@dataclass
class Recount:
    """A caller's day, from its messages and from the definitions that it may see."""

    caller: Caller
    found: Counter[str] = field(default_factory=Counter[str])
    own: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    used: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))
    described: str = ""

    def add(self, method: str, params: Message, answer: Message | None) -> None:
        if method == "tools/list" and answer:
            sent = "".join(map(compact, answer["tools"]))
            self._note("tools/list", int("cursor" not in params), map(for_model, answer["tools"]), sent)
        elif method == "tools/call":
            name: str = params["name"]
            arguments: Message = params.get("arguments") or {}
            self._use(name, arguments, answer)
            if answer:
                self._answer(name, arguments, answer)
        elif method == "resources/read" and answer:
            own = [text for block in answer["contents"] for text in own_texts(block)]
            self._note("resources/read", 1, own, "".join(own))

    def _answer(self, name: str, arguments: Message, answer: Message) -> None:
        texts = [block["text"] for block in answer["content"] if "text" in block]
        own = [text for block in answer["content"] for text in own_texts(block)]
        self._note(name if name in OURS else "direct", 1, own, "".join(own))
        if answer["isError"] or name not in ("find_tool", "describe_tool"):
            return
        found = answer["structuredContent"] if name == "find_tool" else self._described(texts)
        if name == "find_tool" and "cursor" not in arguments:
            saved = found["token_metrics"]["tokens_saved"] if found["tools"] else 0
            self.found.update(searches=1, found_nothing=int(not found["tools"]), tokens_saved=saved)
        for tool in found["tools"]:
            self.used[tool["name"]]["shown"] += 1

    def _described(self, texts: list[str]) -> Message:
        """Return a description once its last page has come, until then one without tools."""
        text, *notice = texts
        self.described += text
        if notice:
            return {"tools": []}
        whole, self.described = self.described, ""
        found: Message = json.loads(whole)
        return found

    def _use(self, name: str, arguments: Message, answer: Message | None) -> None:
        """Count a call of a server's tool that the caller may see; further pages and invalid arguments are none."""
        called = arguments.get("tool_name", "") if name == "call_tool" else name.replace("__", ":", 1)
        is_offered = "tools:call" in self.caller.permissions if name == "call_tool" else self.caller.toolset
        is_rejected = answer is not None and answer["isError"] and has_invalid_arguments(called, answer)
        if is_offered and called in names(self.caller) and not is_rejected:
            self.used[called].update(calls=1, failed_calls=int(answer is None or answer["isError"]))

    def _note(self, tool: str, answers: int, texts: Iterable[str], sent: str) -> None:
        self.own[tool].update(answers=answers, tokens=sum(map(COUNT, texts)), bytes=len(sent.encode()))

    def totals(self) -> Counter[str]:
        """Return the sums that the report states for this caller."""
        lists = self.own.get("tools/list", Counter())
        answers = [amounts for tool, amounts in self.own.items() if tool != "tools/list"]
        spent = sum(amounts["tokens"] for amounts in answers)
        contexts = min(lists["answers"], sum(amounts["answers"] for amounts in answers))
        baseline = contexts * sum(COUNT(for_model(tool)) for tool in visible(self.caller))
        sums = {"baseline_tokens": baseline, "listed_tokens": lists["tokens"], "answer_tokens": spent}
        return Counter(net_tokens_saved=baseline - lists["tokens"] - spent, contexts=contexts, **sums, **self.found)


def has_invalid_arguments(called: str, answer: Message) -> bool:
    """Return whether Toolscale rejected the arguments of this call, which is then no call of its server."""
    _, _, tool = called.partition(":")
    return str(answer["content"][0].get("text", "")).startswith(f"{tool}: ")


def names(caller: Caller) -> set[str]:
    return {f"{server}:{verb}_it" for server, verb in visible_to(caller)}


# --- what the callers do ---


@dataclass(frozen=True)
class Act:
    """A request of a caller at a replica, and whether the caller follows the cursors of its answer."""

    caller: int
    replica: int
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    follows: bool = True


def acts(tool: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Act]:
    # every page of a description is read, so that the recount knows the tools in it
    follows = st.just(value=True) if tool == "describe_tool" else st.booleans()
    given_arguments = st.fixed_dictionaries({}, optional=arguments)
    return st.builds(Act, st.integers(0, len(CALLERS) - 1), st.integers(0, REPLICAS - 1), st.just(tool),
                     given_arguments, follows)  # fmt: skip


some_names = st.lists(
    st.sampled_from([*(f"{server}:{verb}_it" for server in FLEET for verb in VERBS), "read_it", "nothing"]),
    min_size=1, max_size=6, unique=True,
)  # fmt: skip
detail = st.sampled_from(["detailed", "summary", "name"])
lengths = st.fixed_dictionaries({"length": st.sampled_from([1, 40, 3_000])})
called_names = st.sampled_from([f"{server}:{verb}_it" for server in ("up", "mail", "gone") for verb in VERBS])
# the error that repeats it is longer than the smallest page
LONG_NAME = "é漢" * 140
steps = st.one_of(
    acts("tools/list"),
    acts("tools/list"),
    acts(
        "find_tool",
        tool_description=st.sampled_from(["read what up has", "send it", "", ["read", "send"]]),
        detail=detail,
        limit=st.integers(1, 12),
        servers=st.sampled_from([["up"], ["nothing"]]),
        max_tokens=st.sampled_from([200, 400]),
    ),
    acts("describe_tool", names=some_names),
    acts("list_available_tools", detail=detail),
    acts("get_active_toolset"),
    acts("get_savings_report", period=st.sampled_from(["7d", "never"])),
    acts(
        "call_tool",
        tool_name=called_names | st.just(LONG_NAME),
        parameters=lengths,
        max_tokens=st.sampled_from([200, 400]),
    ),
    acts("resources/read", linked=st.sampled_from([1, 40])),
    acts("up__read_it", length=st.sampled_from([1, 3_000])),
    acts("up__list_it", length=st.sampled_from([1, 3_000])),
)


# each kind of answer, twice, by a caller with direct tools
EVERYTHING = [
    Act(2, replica, tool, arguments)
    for replica in range(REPLICAS)
    for tool, arguments in (
        ("tools/list", {}),
        ("find_tool", {"tool_description": "read", "limit": 2, "detail": "summary"}),
        ("find_tool", {"tool_description": "read", "servers": ["nothing"]}),
        ("find_tool", {}),
        ("describe_tool", {"names": ["up:read_it", "mail:send_it", "nothing"], "max_tokens": 200}),
        ("list_available_tools", {"detail": "detailed"}),
        ("get_active_toolset", {}),
        ("get_savings_report", {}),
        ("call_tool", {"tool_name": "up:read_it", "parameters": {"length": 3_000}}),
        ("call_tool", {"tool_name": "up:list_it", "parameters": {"length": 3_000}}),
        ("call_tool", {"tool_name": "up:write_it"}),
        ("call_tool", {"tool_name": "up:send_it", "parameters": {"length": 1}}),
        ("call_tool", {"tool_name": "mail:send_it"}),
        ("call_tool", {"tool_name": LONG_NAME, "max_tokens": 200}),
        ("resources/read", {"linked": 1}),
        ("resources/read", {"linked": 40}),
        ("up__read_it", {"length": 3_000}),
        ("up__list_it", {"length": 3_000}),
    )
]


async def act(client: Client, step: Act) -> None:
    cursor: str | None = None
    while True:
        try:
            cursor = await METHODS.get(step.tool, asked)(client, step, cursor)
        except MCPError:
            return
        if cursor is None or not step.follows:
            return


async def listed(client: Client, _: Act, cursor: str | None) -> str | None:
    return (await client.list_tools(cursor=cursor, cache_mode="refresh")).next_cursor


async def read(client: Client, step: Act, cursor: str | None) -> str | None:
    """Call a tool, read the resource that it links to, and return the cursor to the next page."""
    if cursor is not None:
        return await asked(client, step, cursor)
    request = {"tool_name": "up:read_it", "parameters": {"length": 1, "linked": 1, **step.arguments}}
    called = await client.call_tool("call_tool", request)
    for link in called.content:
        if isinstance(link, ResourceLink):
            *_, last = (await client.read_resource(link.uri)).contents
            return cursor_in(last.text) if isinstance(last, TextResourceContents) else None
    return None


async def asked(client: Client, step: Act, cursor: str | None) -> str | None:
    """Ask, and return the cursor to the next page; those of a server's tool are read by call_tool."""
    arguments = dict(step.arguments) | ({"cursor": cursor} if cursor else {})
    is_upstreams_page = cursor and step.tool not in OURS[:2] and step.tool != "list_available_tools"
    tool = step.tool if step.tool in OURS else "call_tool" if cursor else step.tool
    answer = await client.call_tool(tool, {"cursor": cursor} if is_upstreams_page else arguments)
    if answer.structured_content is not None and "nextCursor" in answer.structured_content:
        return str(answer.structured_content["nextCursor"])
    *_, text = [block.text for block in answer.content if isinstance(block, TextContent)] or [""]
    return cursor_in(text)


def cursor_in(text: str) -> str | None:
    return str(json.loads(text)["nextCursor"]) if text.startswith('{"nextCursor"') else None


METHODS = {"tools/list": listed, "resources/read": read}


# --- the property ---


@contextmanager
def stores(kind: str) -> Generator[Callable[[], Usage]]:
    """Yield what opens the store of a replica."""
    redis = FakeRedisServer()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "savings.sqlite3"
        yield lambda: SqliteUsage(file, 30) if kind == "sqlite" else RedisUsage(redis.client(), 30)


async def play(steps: Sequence[Act], catalogues: Sequence[Catalogue], upstreams: Upstreams, mode: str) -> list[Recount]:
    """Take the steps in turn; return the recount of each caller."""
    messages: dict[tuple[int, int], list[Message]] = defaultdict(list)
    async with AsyncExitStack() as opened:
        clients: dict[tuple[int, int], Client] = {}
        for step in steps:
            key = step.caller, step.replica
            if key not in clients:
                caller = CALLERS[step.caller]
                server = service_of(catalogues[step.replica], upstreams, partial(of, caller))
                connection = recorded_client(server, messages[key], mode)
                clients[key] = await opened.enter_async_context(connection)
            await act(clients[key], step)
    recounts = [Recount(caller) for caller in CALLERS]
    for (caller_number, _), seen in messages.items():
        for exchange in exchanges(seen):
            recounts[caller_number].add(*exchange)
    return recounts


def of(caller: Caller, _: object) -> Caller:
    return caller


@pytest.fixture(scope="module")
def upstreams() -> Generator[Upstreams]:
    with scripted_http(upstream) as server:
        opened = upstreams_to({"up": HttpTarget(server.url)})
        yield opened


@pytest.mark.parametrize("kind", ["sqlite", "fakeredis"])
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(taken=st.lists(steps, max_size=12), mode=st.sampled_from(("legacy", "2026-07-28")))
@example(EVERYTHING, "legacy")
@example(EVERYTHING, "2026-07-28")
def test_the_report_equals_a_recount_of_what_left(upstreams: Upstreams, kind: str, taken: list[Act], mode: str) -> None:
    policy = ResponsePolicy(max_tokens=600)
    held = index()
    catalogue = Catalogue(held, FakeEmbedder(), Ledger(held), no_match_threshold=-1, response_policy=policy)
    with stores(kind) as open_store:
        with ExitStack() as opened:
            catalogues = [
                opened.enter_context(recorded(catalogue, opened.enter_context(closing(open_store()))))
                for _ in range(REPLICAS)
            ]
            recounts = anyio.run(play, taken, catalogues, upstreams, mode)
        with closing(open_store()) as usage:
            callers = [with_toolset_scope(caller, held) for caller in CALLERS]
            reports = [report_for(caller, caller.scope, "today", usage, held) for caller in callers]

    check(reports[0], recounts)
    for report, recount in zip(reports[1:], recounts[1:], strict=True):
        check(report, [recount])


def check(report: SavingsReport, recounts: Sequence[Recount]) -> None:
    """Compare a report with the recounts of the callers that it covers."""
    totals: Counter[str] = Counter()
    for recount in recounts:
        totals.update(recount.totals())
    assert report.totals.model_dump() == {name: totals[name] for name in STATED}
    own = together(recount.own for recount in recounts)
    assert {use.name: use.model_dump(exclude={"name"}) for use in report.own_tools} == {
        name: {"answers": sums["answers"], "tokens": sums["tokens"], "bytes": sums["bytes"]}
        for name, sums in own.items()
    }
    used = together(recount.used for recount in recounts)
    assert {use.name: (use.shown, use.calls, use.failed_calls) for use in report.by_tool} == {
        name: (sums["shown"], sums["calls"], sums["failed_calls"]) for name, sums in used.items()
    }


def together(parts: Iterable[Mapping[str, Counter[str]]]) -> dict[str, Counter[str]]:
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in parts:
        for name, amounts in part.items():
            sums[name].update(amounts)
    return sums
