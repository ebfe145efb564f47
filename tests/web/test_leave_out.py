"""The list of tools, and tools that a person leaves out of a toolset or of the mcp.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from query.catalogue import Catalogue
from query.listener import open_listener
from query.records import Ledger
from query.usage.usage import RowKey, Usage, today
from query.web.page import Means
from query.web.routes import page_routes
from query.web.tools import without
from shared.catalog import OPERATOR_SOURCE
from shared.errors import ConfigInvalid
from shared.settings import load_settings
from shared.toolset import Toolset
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.http_callers import entry, http_client, static
from tests.support.replicated import put_server, tool
from toolscale.mcp_clients.excluding import exclude

pytestmark = pytest.mark.anyio

ORIGIN = {"origin": "http://127.0.0.1"}


def index() -> FakeIndex:
    """Return two servers of the mcp.json, and one of an event."""
    index = FakeIndex()
    put_server(index, "git", [tool("log", "", 300), tool("push", "", 100)], "git", source=OPERATOR_SOURCE)
    put_server(index, "time", [tool("now", "", 50)], "time", source=OPERATOR_SOURCE)
    put_server(index, "ci", [tool("run", "", 20)], "ci", source="pipeline")
    return index


class Site:
    """A page whose mcp.json and reconciliations a test sees."""

    def __init__(self, tokens: Path | None = None, usage: Usage | None = None, **callers: Any) -> None:
        self.excluded: dict[str, Any] = {}
        self.resyncs: list[str] = []
        self.index = index()
        known = static(tokens, **{name: entry(name, **more) for name, more in callers.items()}) if tokens else None
        listener = open_listener(load_settings(port=0), known)
        catalogue = Catalogue(self.index, FakeEmbedder(), Ledger(self.index), usage=usage)
        means = Means(self.resyncs.append, None, self._exclude, Path("/home/ann/mcp.json"))
        self.app = Starlette(routes=page_routes(catalogue, listener, means))
        listener.close()

    def _exclude(self, tools: Mapping[str, Any]) -> None:
        self.excluded |= {server: sorted(names) for server, names in tools.items()}

    async def asked(self, *tools: str, bearer: str | None = None) -> httpx2.Response:
        """Return the page that asks for a confirmation."""
        async with http_client(self.app, bearer) as http:
            return await http.get("/ui/leave-out", params=[("tool", each) for each in tools])

    async def written(self, place: str, *tools: str, bearer: str | None = None) -> httpx2.Response:
        """Return the answer to a confirmation, with the token of a page that asks for one."""
        async with http_client(self.app, bearer) as http:
            page = await http.get("/ui/leave-out", params={"tool": "git:log"})
            token = re.findall(r'name="token" value="([^"]+)"', page.text)
            fields = {"token": token[0] if token else "", "place": place, "tool": list(tools)}
            return await http.post("/ui/leave-out", data=fields, headers=ORIGIN)


def places(page: httpx2.Response) -> list[str]:
    return re.findall(r'name="place" value="([^"]+)"', page.text)


# --- the list ---


async def test_the_list_has_the_largest_tools_first_and_those_without_calls_alone(usage: Usage) -> None:
    usage.add({RowKey(today(), "ann", "git", "log"): {"calls": 3}})
    async with http_client(Site(usage=usage).app) as http:
        listed, unused, of_git = [
            re.findall(r'name="tool" value="([^"]+)"', (await http.get(path)).text)
            for path in ("/ui/tools", "/ui/tools?unused=1", "/ui/tools?server=git")
        ]

    assert listed == ["git:log", "git:push", "time:now", "ci:run"]
    assert unused == ["git:push", "time:now", "ci:run"]
    assert of_git == ["git:log", "git:push"]


async def test_the_list_needs_no_call_and_no_history(usage: Usage) -> None:
    for kept in (usage, None):
        async with http_client(Site(usage=kept).app) as http:
            assert (await http.get("/ui/tools")).status_code == 200


# --- the confirmation ---


async def test_a_person_sees_what_it_saves_and_where_it_is_written() -> None:
    site = Site()
    site.index.put_toolset(Toolset(name="dev", tools=("git",)))
    site.index.put_toolset(Toolset(name="ops", tools=("time:now",)))

    page = await site.asked("git:log", "git:push", "git:gone")

    assert "400 tokens" in page.text
    assert places(page) == ["toolset:dev", "mcp.json"]
    assert site.excluded == {}  # nothing is written yet


async def test_of_a_server_of_an_event_the_rule_of_the_policy_file_is_shown() -> None:
    page = await Site().asked("ci:run", "git:log")

    assert places(page) == []
    assert "excludeTools = [&#34;log&#34;, &#34;run&#34;]" in page.text


@pytest.mark.parametrize("tools", [[], ["git:gone"], ["nothing:log"], ["git"]])
async def test_without_a_tool_there_is_nothing_to_leave_out(tools: list[str]) -> None:
    assert (await Site().asked(*tools)).status_code == 404


@pytest.mark.parametrize(
    ("rights", "offered"),
    [
        ({}, ["toolset:dev", "mcp.json"]),
        ({"permissions": ["catalog:read", "toolsets:write"]}, ["toolset:dev"]),
        ({"permissions": ["catalog:read", "operate"]}, ["mcp.json"]),
        ({"permissions": ["catalog:read"]}, []),
    ],
)
async def test_a_place_needs_its_permission(tmp_path: Path, rights: dict[str, Any], offered: list[str]) -> None:
    site = Site(tmp_path / "t.toml", ann=rights, root={})
    site.index.put_toolset(Toolset(name="dev", tools=("git",)))

    assert places(await site.asked("git:log", bearer="ann")) == offered
    for place in {"toolset:dev", "mcp.json"} - set(offered):
        answer = await site.written(place, "git:log", bearer="ann")
        assert answer.status_code in (403, 404)
    assert (site.excluded, site.index.toolset("dev")) == ({}, Toolset(name="dev", tools=("git",)))


# --- what is written ---


async def test_a_tool_leaves_a_toolset_and_the_others_of_its_server_stay() -> None:
    site = Site()
    site.index.put_toolset(Toolset(name="dev", tools=("git", "time:now"), budget_tokens=500, description="mine"))

    answer = await site.written("toolset:dev", "git:log")

    assert answer.status_code == 303
    left = Toolset(name="dev", tools=("git:push", "time:now"), budget_tokens=500, description="mine")
    assert site.index.toolset("dev") == left


async def test_a_tool_leaves_the_mcp_json_and_its_server_is_listed_again() -> None:
    site = Site()

    answer = await site.written("mcp.json", "git:log", "git:push", "time:now")

    assert answer.status_code == 303
    assert site.excluded == {"git": ["log", "push"], "time": ["now"]}
    assert site.resyncs == ["git", "time"]


async def test_an_unknown_place_is_refused() -> None:
    site = Site()

    assert (await site.written("toolset:none", "git:log")).status_code == 404
    assert site.excluded == {}


NAMES = st.sampled_from([f"{server}:{name}" for server in "ab" for name in "xyz"])


@given(entries=st.lists(NAMES | st.sampled_from("ab"), max_size=5), left=st.sets(NAMES, min_size=1))
def test_exactly_what_is_left_out_leaves_a_toolset(entries: list[str], left: set[str]) -> None:
    before = Toolset(name="t", tools=tuple(entries))

    after = without(before, left, lambda _: ["x", "y", "z"])

    for server in "ab":
        for name in "xyz":
            was = before.selection.admits(server, name)
            assert after.selection.admits(server, name) == (was and f"{server}:{name}" not in left)


def test_the_file_keeps_its_comments_and_its_other_exclusions(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        '{\n  // mine\n  "mcpServers": {\n    "git": {"command": "git-mcp", "excludeTools": ["push"]},\n'
        '    "My Time": {"command": "time-mcp"}\n  }\n}\n'
    )

    exclude(path, {"git": ["log", "push"], "My-Time": ["now*"]})

    assert "// mine" in path.read_text()
    document = json.loads(re.sub(r"//.*", "", path.read_text()))["mcpServers"]
    assert document["git"]["excludeTools"] == ["push", "log"]
    assert document["My Time"]["excludeTools"] == ["now[*]"]  # no other tool fits
    assert list(tmp_path.glob("mcp.json.*.bak"))


@pytest.mark.parametrize("tools", [{"gone": ["log"]}, {"git": ["log"], "gone": ["log"]}])
def test_without_an_entry_the_file_stays_as_it_is(tmp_path: Path, tools: dict[str, list[str]]) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(before := '{"mcpServers": {"git": {"command": "git-mcp"}}}')

    with pytest.raises(ConfigInvalid, match="gone"):
        exclude(path, tools)

    assert path.read_text() == before
