"""The page for people: access, contents, and that nothing of it is taken for markup."""

from __future__ import annotations

import base64
import importlib.metadata
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog

from query.auth.authentication import Authentication
from query.caller import ANYONE
from query.catalogue import Catalogue, recorded
from query.records import Ledger
from query.usage.usage import Usage, today
from query.web.find import find
from query.web.overview import overview
from query.web.page import CONTENT_SECURITY_POLICY, LIVE_POLICY, PageRequest, render
from shared.catalog import Endpoint, RejectedTool, ServerRecord
from shared.toolset import Toolset
from shared.upstream.followed_config import FollowedConfig
from shared.upstream.mcp_json import EntryProblem
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import index_of, record_of
from tests.support.http_callers import Unreachable, app_of, entry, http_client, static

pytestmark = pytest.mark.anyio

PAGES = ("/ui", "/ui/servers", "/ui/servers/clock", "/ui/find", "/ui/find?q=time", "/ui/history")
SCRIPT = f'<script src="/ui/static/page.js?{importlib.metadata.version("toolscale")}" defer></script>'
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\u202egnp.exe\x00{{ 7*191 }}'


def clock() -> FakeIndex:
    return index_of(
        make_tool("clock", "get_time", "Tell the time", tokens=30, model_tokens=20, groups=["team"]),
        make_tool("files", "read_file", "Read a file", tokens=70, model_tokens=60, groups=["other"]),
    )


async def get(
    path: str, index: FakeIndex | None = None, authentication: Authentication | None = None, /, **headers: str
) -> httpx2.Response:
    async with http_client(app_of(index or clock(), authentication)) as http:
        return await http.get(path, headers=headers)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Parsed(HTMLParser):
    """What a browser would make of a page: its elements, their attributes, and its text."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.sources: set[str | None] = set()
        self.links: set[str | None] = set()
        self.text = ""
        self.scripts = 0
        self.feed(response.content.decode("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.scripts += tag == "script"
        self.attributes |= {name for name, _ in attrs}
        self.sources |= {value for name, value in attrs if name == "src"}
        self.links |= {value for name, value in attrs if name == "href"}

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


# --- what is shown ---


@pytest.mark.parametrize("path", ["/ui", "/ui/servers"])
async def test_entries_left_out_of_the_followed_file_are_shown_with_the_reason(path: str) -> None:
    left_out = tuple(EntryProblem(name=f"<b>{number}", reason=HOSTILE) for number in range(23))
    followed = FollowedConfig(path="/home/ann/mcp.json", servers=2, left_out=left_out)

    async with http_client(app_of(clock(), followed=followed)) as http:
        page = Parsed(await http.get(path))

    assert "/home/ann/mcp.json: 2 usable servers; left out: 23" in page.text
    assert "<b>19" in page.text
    assert "<b>20" not in page.text
    assert "3 more;" in page.text
    assert "b" not in page.elements


@pytest.mark.parametrize("path", ["/ui", "/ui/servers"])
async def test_a_broken_followed_file_is_shown_to_a_caller_without_groups(tmp_path: Path, path: str) -> None:
    known = static(tmp_path / "t.toml", root=entry("root"), ann=entry("good", groups=["team"]))
    broken = FollowedConfig(path="/mcp.json", problem="/mcp.json: not JSON: line 1, column 2")

    async with http_client(app_of(clock(), known, followed=broken), "root") as http:
        shown = Parsed(await http.get(path))
        of_a_team = await http.get(path, headers={"authorization": "Bearer good"})

    assert "/mcp.json: not JSON: line 1, column 2; the last usable content stays in use" in shown.text
    assert "/mcp.json" not in of_a_team.text


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_forbids_scripts_frames_and_what_comes_from_elsewhere(path: str) -> None:
    page = await get(path)

    assert page.status_code == 200
    is_live = path == "/ui"
    assert page.headers["content-security-policy"] == (LIVE_POLICY if is_live else CONTENT_SECURITY_POLICY)
    assert LIVE_POLICY == CONTENT_SECURITY_POLICY + "; script-src 'self'; connect-src 'self'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "script" not in CONTENT_SECURITY_POLICY
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "same-origin"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not {"iframe", "style"} & Parsed(page).elements
    assert re.findall(r"<script.*?</script>", page.text) == [SCRIPT] * is_live
    assert "style" not in Parsed(page).attributes


@pytest.mark.parametrize("file", ["page.css", "icon.svg", "page.js"])
async def test_style_and_pictures_are_our_own(file: str) -> None:
    answer = await get(f"/ui/static/{file}")

    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] in ("text/css", "image/svg+xml", "text/javascript")
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_browser_at_the_root_is_led_to_the_page() -> None:
    answer = await get("/")

    assert (answer.status_code, answer.headers["location"]) == (307, "/ui")


async def test_the_page_can_only_be_read() -> None:
    async with http_client(app_of(clock())) as http:
        assert (await http.post("/ui")).status_code == 405


async def test_the_overview_says_what_there_is_and_what_it_costs() -> None:
    text = Parsed(await get("/ui")).text

    assert " ".join(text.split()).count("Context of all tools 80 tokens") == 1
    assert text.index("files") < text.index("clock")  # the most expensive first


@pytest.mark.parametrize(
    ("tools", "index_is_embedded", "is_advised"), [(20_001, True, True), (20_000, True, False), (20_001, False, False)]
)
def test_the_overview_advises_a_qdrant_server_for_a_large_embedded_index(
    tools: int, index_is_embedded: bool, is_advised: bool
) -> None:
    index = index_of(make_tool("clock", "get_time"), tool_count=tools)
    large = Catalogue(index, FakeEmbedder(), Ledger(index), index_is_embedded=index_is_embedded)

    shown = render(overview(PageRequest(ANYONE, ANYONE.scope, large, {}, {})), page_name="overview", caller=ANYONE).body

    assert (b"more than 20,000 tools: set QDRANT_URL" in shown) is is_advised


REASONS = {"stale": "no route", "failing": "connection refused"}


@pytest.mark.parametrize(
    ("path", "states"),
    [
        ("/ui", ["stale", "failing"]),
        ("/ui/servers", ["stale", "failing"]),
        ("/ui/servers/old", ["stale"]),
        ("/ui/servers/new", ["failing"]),
    ],
)
async def test_a_server_that_could_not_be_listed_shows_its_error_and_is_stale_if_it_ever_was(
    path: str, states: list[str]
) -> None:
    index = index_of(make_tool("old", "t"), stale_since=2.0, last_error=REASONS["stale"])
    failed: dict[str, Any] = {"stale_since": 2.0, "last_error": REASONS["failing"], "last_listed_at": None}
    index.put_server(record_of("new", **failed))

    text = Parsed(await get(path, index)).text.replace("Stale since", "")

    assert [state for state in REASONS if state in text] == states
    assert [reason for reason in REASONS.values() if reason in text] == [REASONS[state] for state in states]


async def test_a_server_that_was_not_listed_yet_is_known_and_not_running() -> None:
    index = clock()
    index.put_server(ServerRecord(server_id="new", endpoint=Endpoint(), revision=9))
    index.put_server(ServerRecord(server_id="npx", endpoint=Endpoint(transport="stdio"), revision=10))

    text = " ".join(Parsed(await get("/ui/servers", index)).text.split())

    assert "2 running, 2 tools, 80 tokens (cl100k_base, generic profile)" in text
    assert "new waiting never — — —" in text
    assert "npx installing never — — —" in text
    assert "which may install packages" in Parsed(await get("/ui/servers/npx", index)).text


async def test_a_servers_tools_are_sorted_by_their_tokens_and_come_in_pages() -> None:
    index = index_of(
        *(make_tool("big", f"tool{number:03}", tokens=1_000, model_tokens=number) for number in range(250))
    )

    pages = [await get(path, index) for path in ("/ui/servers/big", "/ui/servers/big?page=3")]
    first, last = (Parsed(page).text for page in pages)

    assert first.index("tool249") < first.index("tool248") < first.index("tool150")
    assert "tool149" not in first
    assert 'aria-label="Page 3 of 3" aria-current="page"' in pages[1].text
    assert "tool049" in last
    assert "tool050" not in last


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/ui/find?q=" + "x" * 5_000, 400, "tool_description"),
        ("/ui/find?q=time&cursor=abc", 400, "cursor"),
        ("/ui/servers/nothing", 404, "No such server"),
        ("/ui/servers/clock?page=99999999999999999999", 200, "get_time"),
        ("/ui/servers/clock?page=x", 200, "get_time"),
    ],
)
async def test_a_wrong_address_is_refused_with_the_reason_and_a_wrong_page_shows_some_page(
    path: str, status: int, reason: str
) -> None:
    answer = await get(path)

    assert (answer.status_code, reason in answer.text) == (status, True)


def test_searches_of_the_page_are_not_recorded(usage: Usage) -> None:
    index = clock()
    with recorded(Catalogue(index, FakeEmbedder(), Ledger(index)), usage) as catalogue:
        page = find(PageRequest(ANYONE, ANYONE.scope, catalogue, {}, {"q": "time"}, "http://127.0.0.1:8765"))

    assert page.status == 200
    assert usage.rows(today(), today()) == {}


async def test_while_the_index_is_down_the_page_says_so() -> None:
    index = clock()
    index.is_down = True

    answer = await get("/ui", index)

    assert answer.status_code == 503
    assert "cannot be reached" in answer.text


# --- hostile names ---


@pytest.mark.parametrize("path", ["/ui", "/ui/servers", "/ui/servers/s", "/ui/find?q=alert", "/ui/history"])
async def test_nothing_that_a_server_says_becomes_markup(path: str, usage: Usage) -> None:
    told: dict[str, Any] = {"last_error": HOSTILE, "declared_name": HOSTILE, "protocol_version": HOSTILE}
    rejected = [RejectedTool(name=HOSTILE, reason=HOSTILE)]
    index = index_of(make_tool("s", HOSTILE, f"alert {HOSTILE}\ud800", groups=[HOSTILE]), rejected=rejected, **told)

    async with http_client(app_of(index, usage=usage)) as http:
        page = Parsed(await http.get(path))

    assert "iframe" not in page.elements
    assert "onerror" not in page.attributes
    assert page.sources - {SCRIPT.split('"')[1]} == {"/ui/static/icon.svg"}
    assert page.scripts == (1 if path == "/ui" else 0)
    assert "\u202e" not in page.text
    assert "1337" not in page.text  # a template in a name is not run
    if path != "/ui/history":
        assert "<script>alert(1)</script>" in page.text
    assert "script" not in Parsed(await get("/ui/find?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")).elements


@pytest.mark.parametrize("path", ["/ui", "/ui/servers/s"])
async def test_a_tool_with_marked_texts_needs_attention(path: str) -> None:
    page = Parsed(await get(path, index_of(make_tool("s", "hiding", "Read.\ufffd"), marked=("hiding",))))

    assert "invisible characters" in page.text


@pytest.mark.parametrize("path", ["/ui", "/ui/servers", "/ui/servers/s"])
@pytest.mark.parametrize(("held", "state"), [(0, "not accepted"), (2, "held")])
async def test_changed_definitions_need_attention(path: str, held: int, state: str) -> None:
    text = Parsed(await get(path, index_of(make_tool("s", "t"), unaccepted=2, held=held))).text

    assert "2 changed definitions" in text or "2 of its tools have changed definitions" in text
    assert path == "/ui" or (state in text and "toolscale diff" in text)
    assert "changed definition" not in Parsed(await get(path, index_of(make_tool("s", "t")))).text


async def test_the_name_of_a_server_is_one_part_of_an_address() -> None:
    index = index_of(make_tool("a/../b?c#d", "t"))

    listed = await get("/ui/servers", index)

    assert 'href="/ui/servers/a%2F..%2Fb%3Fc%23d"' in listed.text
    assert (await get("/ui/servers/a%2F..%2Fb%3Fc%23d", index)).status_code == 200


# --- access ---


@pytest.fixture
def known(tmp_path: Path) -> Authentication:
    weak, dev = entry("weak", permissions=["tools:call"]), entry("dev", toolset="dev")
    return static(tmp_path / "tokens.toml", ann=entry("good", ["team"]), robot=weak, dev=dev)


@pytest.mark.parametrize("header", [None, "Bearer bad", basic("ann", "bad"), "Basic %%%", "Digest good", "Basic"])
@pytest.mark.parametrize("path", PAGES)
async def test_without_a_token_that_opens_it_a_browser_asks_for_one(
    known: Authentication, path: str, header: str | None
) -> None:
    answer = await get(path, None, known, **({"authorization": header} if header else {}))

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Basic realm="Toolscale", charset="UTF-8"'
    assert "clock" not in answer.text
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


@pytest.mark.parametrize("header", ["Bearer good", basic("anybody", "good"), basic("good", ""), basic("", "good")])
async def test_the_token_of_mcp_opens_the_page_as_a_bearers_and_as_a_password(
    known: Authentication, header: str
) -> None:
    answer = await get("/ui", None, known, authorization=header)

    assert answer.status_code == 200
    assert "seen as <strong><bdi>ann" in answer.text


async def test_a_caller_with_a_toolset_sees_nothing_outside_it(known: Authentication) -> None:
    index = clock()
    index.put_toolset(Toolset(name="dev", tools=("files:read_file",)))

    pages = [await get(path, index, known, authorization="Bearer dev") for path in PAGES]

    assert [page.status_code for page in pages] == [200, 200, 404, 200, 200, 200]
    assert "clock" not in "".join(page.text for page in pages)


async def test_a_token_that_may_not_read_the_catalogue_sees_nothing(known: Authentication) -> None:
    answer = await get("/ui", None, known, authorization="Bearer weak")

    assert answer.status_code == 403
    assert "clock" not in answer.text


async def test_a_refused_token_is_in_no_line_of_the_log(known: Authentication) -> None:
    with structlog.testing.capture_logs() as lines:
        await get("/ui", None, known, authorization=basic("ann", "some-secret"))

    assert [line["event"] for line in lines] == ["authentication_failed"]
    assert "secret" not in str(lines)


async def test_a_request_of_the_page_is_logged_without_the_question() -> None:
    with structlog.testing.capture_logs() as lines:
        await get("/ui/find?q=time")

    (line,) = [line for line in lines if line["event"] == "page_served"]
    assert (line["page"], line["caller"], line["status"]) == ("find", "anyone", 200)
    assert "time" not in line.values()


async def test_while_the_keys_cannot_be_fetched_nobody_is_asked_for_another_token() -> None:
    answer = await get("/ui", None, Unreachable(), authorization="Bearer a.b.c")

    assert answer.status_code == 503
    assert "www-authenticate" not in answer.headers


@pytest.mark.parametrize(("header", "value"), [("host", "evil.example.org"), ("origin", "https://evil.example.org")])
@pytest.mark.parametrize("path", PAGES)
async def test_a_name_that_is_not_ours_is_refused_as_for_mcp(path: str, header: str, value: str) -> None:
    answer = await get(path, None, None, **{header: value})

    assert answer.status_code in (403, 421)
    assert "clock" not in answer.text
