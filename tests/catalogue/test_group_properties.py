"""Groups are part of every scope: nothing of a server that a caller may not see shows in anything it is told."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.types import TextContent

from query.kept import LONGEST_NAME
from query.records import Ledger
from query.usage.record import call_rows, sampling
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import Usage, summed, today
from shared.catalog import ENCODINGS, FEATURES_VERSION, Encoding, Endpoint, IndexedTool, ServerRecord, Status
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.http_callers import app_of, entry, http_client, mcp_client, static
from tests.support.profiles import examples

WORDS = ("read", "send", "search", "convert", "calendar", "file", "mail", "time")
GROUPS = ("red", "green", "blue")
SERVERS = 5

State = Literal["listed", "stale", "awaited", "stopped", "quarantined"]
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
some_groups = st.frozensets(st.sampled_from(GROUPS))
NOT_COUNTED: dict[Encoding, int] = {}


@dataclass(frozen=True)
class Server:
    """A server of a random fleet."""

    server_id: str
    groups: frozenset[str]
    state: State
    tools: tuple[IndexedTool, ...]

    @property
    def status(self) -> Status:
        return self.state if self.state in ("stopped", "quarantined") else "running"

    def record(self) -> ServerRecord:
        counted = [tool for tool in self.tools if tool.token_counts]
        sums: dict[Encoding, int] = {
            encoding: sum(tool.token_counts[encoding] for tool in counted) for encoding in ENCODINGS
        }
        names = tuple(tool.definition.name for tool in self.tools if not tool.token_counts)
        return ServerRecord(
            server_id=self.server_id,
            endpoint=Endpoint(),
            groups=self.groups,
            status=self.status,
            features_version=FEATURES_VERSION,
            tool_count=len(self.tools),
            tokens=sums,
            model_tokens=sums,
            uncounted=dict.fromkeys(ENCODINGS, names) if names else {},
            revision=1 + int(self.server_id.removeprefix("srv")),
            last_listed_at=None if self.state == "awaited" else 1.0,
            stale_since=2.0 if self.state == "stale" else None,
        )


@st.composite
def servers(draw: st.DrawFn, number: int) -> Server:
    server_id, groups = f"srv{number}", draw(some_groups)
    state: State = draw(st.sampled_from(("listed", "listed", "stale", "awaited", "stopped", "quarantined")))
    status: Status = state if state in ("stopped", "quarantined") else "running"
    names = [] if state == "awaited" else draw(st.lists(st.sampled_from(WORDS), unique=True, max_size=3))
    tools = tuple(
        make_tool(
            server_id,
            name,
            draw(words),
            draw(st.sampled_from((10, 25))) if draw(st.booleans()) else NOT_COUNTED,
            groups,
            status,
        )
        for name in names
    )
    return Server(server_id, groups, state, tools)


fleets = st.tuples(*(servers(number) for number in range(SERVERS)))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    optional: dict[str, st.SearchStrategy[Any]] = {
        "tool_keywords": words,
        "groups": st.lists(st.sampled_from(GROUPS)),
        "servers": st.lists(st.sampled_from([f"srv{number}" for number in range(SERVERS)])),
        "exclude": st.lists(st.sampled_from(WORDS), max_size=2),
    }
    return draw(st.fixed_dictionaries({"tool_description": words, "limit": st.just(50)}, optional=optional))


# several for each fleet, since most of them narrow too much to tell
narrowed = st.lists(requests(), min_size=3, max_size=5)


def may_see(groups: frozenset[str] | None, server: Server) -> bool:
    return groups is None or not groups.isdisjoint(server.groups)


def catalogue(fleet: Sequence[Server]) -> FakeIndex:
    index, embedder = FakeIndex(), FakeEmbedder()
    for server in fleet:
        index.upsert([ingested(tool, embedder) for tool in server.tools])
        index.put_server(server.record())
    return index


def answers(
    fleet: Sequence[Server], groups: frozenset[str] | None, mode: str, calls: Sequence[tuple[str, dict[str, Any]]]
) -> list[str]:
    """Return what the real server tells a caller with a token for these groups, as text."""

    async def ask(file: Path) -> list[str]:
        authentication = static(file, caller=entry("token", "*" if groups is None else sorted(groups)))
        upstreams = upstreams_to({})
        app = app_of(catalogue(fleet), authentication, upstreams)
        async with http_client(app, "token") as http, mcp_client(http, mode) as client:
            results = [await client.call_tool(name, arguments) for name, arguments in calls]
        return [block.text for result in results for block in result.content if isinstance(block, TextContent)]

    # a random cursor has a random number of tokens
    with tempfile.TemporaryDirectory() as directory, patch("query.find.new_name", return_value=LONGEST_NAME):
        return anyio.run(ask, Path(directory) / "tokens.toml")


def mentioned(text: str) -> set[str]:
    return set(re.findall(r"srv\d", text))


@settings(max_examples=examples(30))
@given(
    fleet=fleets,
    groups=some_groups | some_groups | st.none(),
    asked=narrowed,
    mode=st.sampled_from(("legacy", "2026-07-28")),
)
def test_a_caller_is_told_the_same_as_if_foreign_servers_did_not_exist(
    fleet: tuple[Server, ...], groups: frozenset[str] | None, asked: list[dict[str, Any]], mode: str
) -> None:
    own = [server for server in fleet if may_see(groups, server)]

    calls = [("find_tool", request) for request in asked]
    with_others, alone = answers(fleet, groups, mode, calls), answers(own, groups, mode, calls)

    assert with_others == alone
    # a warning repeats an unknown name of the request
    assert mentioned(" ".join(with_others)) <= {server.server_id for server in own} | mentioned(json.dumps(asked))


@settings(max_examples=examples(20))
@given(fleet=fleets, groups=some_groups, mode=st.sampled_from(("legacy", "2026-07-28")))
def test_a_foreign_tool_is_as_unknown_as_one_that_does_not_exist_even_to_those_who_know_its_name(
    fleet: tuple[Server, ...], groups: frozenset[str], mode: str
) -> None:
    own = {server.server_id for server in fleet if may_see(groups, server)}
    qualified = [f"{server.server_id}:{word}" for server in fleet for word in WORDS]

    (told,) = answers(fleet, groups, mode, [("describe_tool", {"names": ["nobody:read", *qualified, *WORDS]})])

    answer: dict[str, Any] = json.loads(told)
    unknown, *others = answer["not_found"]
    assert {tool["name"].partition(":")[0] for tool in answer["tools"]} <= own
    for problem in others:
        if not mentioned(problem["name"]) <= own:
            assert problem["reason"] == unknown["reason"]
        assert mentioned(json.dumps([problem["reason"], problem.get("candidates")])) <= own


PAGES = ("/ui", "/ui/servers", "/ui/history", *(f"/ui/servers/srv{number}" for number in range(SERVERS)))


def pages(fleet: Sequence[Server], groups: frozenset[str] | None, paths: Sequence[str]) -> list[str]:
    """Return what the page shows to a caller with a token for these groups, after a day on which all was used."""
    index = catalogue(fleet)

    async def request_names(file: Path, usage: Usage) -> list[str]:
        authentication = static(file, caller=entry("token", "*" if groups is None else sorted(groups)))
        async with http_client(app_of(index, authentication, usage=usage), "token") as http:
            # the second of rendering may differ between two pages
            return [re.sub("As of <time.*?</time>", "", (await http.get(path)).text) for path in paths]

    with tempfile.TemporaryDirectory() as directory, closing(SqliteUsage(Path(directory) / "db", 30)) as usage:
        with sampling(usage, Ledger(index), "cl100k_base"):
            pass
        used = [tool for server in fleet for tool in server.tools]
        for name in ("caller", "somebody else") if groups is None else ("somebody else",):
            calls = (call_rows(today(), name, tool.server_id, tool.definition.name, 100, 7) for tool in used)
            usage.add(summed(chain.from_iterable(calls)))
        return anyio.run(request_names, Path(directory) / "tokens.toml", usage)


@settings(max_examples=examples(30))
@given(fleet=fleets, groups=some_groups | st.none(), question=words)
def test_a_caller_is_shown_the_same_pages_as_if_foreign_servers_did_not_exist(
    fleet: tuple[Server, ...], groups: frozenset[str] | None, question: str
) -> None:
    own = [server for server in fleet if may_see(groups, server)]

    with_others, alone = pages(fleet, groups, PAGES), pages(own, groups, PAGES)
    (found,) = pages(fleet, groups, [f"/ui/find?q={question}"])

    assert with_others == alone
    assert mentioned(" ".join([*with_others, found])) <= {server.server_id for server in own}


@settings(max_examples=examples(20))
@given(fleet=fleets, groups=some_groups, mode=st.sampled_from(("legacy", "2026-07-28")))
def test_a_foreign_tool_cannot_be_called_and_is_as_unknown_as_one_that_does_not_exist(
    fleet: tuple[Server, ...], groups: frozenset[str], mode: str
) -> None:
    own = {server.server_id for server in fleet if may_see(groups, server)}
    foreign = [server for server in fleet if server.server_id not in own]
    names = ["nobody:read", *(tool.qualified_name for server in foreign for tool in server.tools), *WORDS]

    told = answers(fleet, groups, mode, [("call_tool", {"tool_name": name}) for name in names])

    for name, text in zip(names, told, strict=True):
        if ":" in name:
            assert text.startswith(f"There is no tool {name!r}.")
        assert mentioned(text.replace(repr(name), "")) <= own
