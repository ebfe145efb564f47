"""Groups are part of every scope: nothing of a server that a caller may not see shows in anything it is told."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.types import TextContent

from shared.catalog import ENCODINGS, RECIPE, Encoding, Endpoint, IndexedTool, ServerRecord, Status
from tests.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.http_callers import app_of, entry, http_client, mcp_client, static

WORDS = ("read", "send", "search", "convert", "calendar", "file", "mail", "time")
GROUPS = ("red", "green", "blue")
SERVERS = 5

State = Literal["listed", "stale", "awaited", "stopped", "quarantined"]
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
some_groups = st.frozensets(st.sampled_from(GROUPS))
counts: st.SearchStrategy[int | dict[Encoding, int]] = st.sampled_from((10, 25)) | st.just({})


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
        sums: dict[Encoding, int] = {each: sum(tool.token_counts[each] for tool in counted) for each in ENCODINGS}
        names = tuple(tool.definition.name for tool in self.tools if not tool.token_counts)
        return ServerRecord(
            server_id=self.server_id,
            endpoint=Endpoint(),
            groups=self.groups,
            status=self.status,
            recipe=RECIPE,
            tool_count=len(self.tools),
            tokens=sums,
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
    tools = tuple(make_tool(server_id, name, draw(words), draw(counts), groups, status) for name in names)
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
        app = app_of(catalogue(fleet), authentication)
        async with http_client(app, "token") as http, mcp_client(http, mode) as client:
            results = [await client.call_tool(name, arguments) for name, arguments in calls]
        return [block.text for result in results for block in result.content if isinstance(block, TextContent)]

    with tempfile.TemporaryDirectory() as directory:
        return anyio.run(ask, Path(directory) / "tokens.toml")


def mentioned(text: str) -> set[str]:
    return set(re.findall(r"srv\d", text))


def without_ranking(answer: str) -> dict[str, Any]:
    """Return an answer without order and scores: how rare a word is, is counted over all tools, as Qdrant does."""
    found: dict[str, Any] = json.loads(answer)
    tools = sorted(json.dumps(tool | {"score": None}, sort_keys=True) for tool in found["tools"])
    metrics = found["token_metrics"]
    metrics = metrics | {"uncounted": sorted(metrics["uncounted"])}
    return found | {"tools": tools, "token_metrics": metrics, "nearest": sorted(found.get("nearest", []))}


@settings(max_examples=30, deadline=None)
@given(
    fleet=fleets,
    groups=st.none() | some_groups,
    request=requests(),
    mode=st.sampled_from(("legacy", "2026-07-28")),
)
def test_a_caller_is_told_the_same_as_if_foreign_servers_did_not_exist(
    fleet: tuple[Server, ...], groups: frozenset[str] | None, request: dict[str, Any], mode: str
) -> None:
    own = [server for server in fleet if may_see(groups, server)]

    (with_others,) = answers(fleet, groups, mode, [("find_tool", request)])
    (alone,) = answers(own, groups, mode, [("find_tool", request)])

    assert without_ranking(with_others) == without_ranking(alone)
    assert mentioned(with_others) <= {server.server_id for server in own}


@settings(max_examples=20, deadline=None)
@given(fleet=fleets, groups=some_groups, mode=st.sampled_from(("legacy", "2026-07-28")), data=st.data())
def test_a_foreign_tool_is_described_to_nobody_who_knows_its_name(
    fleet: tuple[Server, ...], groups: frozenset[str], mode: str, data: st.DataObject
) -> None:
    names = [f"{server.server_id}:{word}" for server in fleet for word in WORDS] + list(WORDS)
    name = data.draw(st.sampled_from(names))
    own = {server.server_id for server in fleet if may_see(groups, server)}

    (told,) = answers(fleet, groups, mode, [("describe_tool", {"names": [name]})])

    assert mentioned(told.replace(name, "")) <= own
    if not mentioned(name) <= own:
        (unknown,) = answers(fleet, groups, mode, [("describe_tool", {"names": ["srv9:read"]})])
        assert _reasons(told) == _reasons(unknown)


def _reasons(answer: str) -> list[str]:
    return [each["reason"] for each in json.loads(answer)["not_found"]]
