"""The page for people: access, contents, and that nothing of it is taken for markup."""

from __future__ import annotations

import base64
from collections.abc import Generator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import httpx2
import pytest
import structlog

from query.auth.authentication import Authentication
from query.caller import ANYONE, Caller
from query.catalogue import Catalogue, recorded
from query.records import Ledger
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import Usage, today
from query.web.page import CONTENT_SECURITY_POLICY, PageRequest, render
from query.web.views import find, overview
from shared.catalog import FEATURES_VERSION, Endpoint, IndexedTool, RejectedTool, ServerRecord
from shared.errors import KeysUnavailable
from shared.quoting import printable
from shared.toolset import Toolset
from shared.upstream.followed_config import FollowedConfig
from shared.upstream.mcp_json import EntryProblem
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.http_callers import app_of, entry, http_client, static

pytestmark = pytest.mark.anyio

PAGES = ("/ui", "/ui/servers", "/ui/servers/clock", "/ui/find", "/ui/find?q=time", "/ui/history")
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\u202egnp.exe\x00{{ 7*191 }}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def usage(tmp_path: Path) -> Generator[Usage]:
    with closing(SqliteUsage(tmp_path / "savings.sqlite3", 30)) as opened:
        yield opened


def record_of(server_id: str, *tools: IndexedTool, **more: object) -> ServerRecord:
    told = {
        "tool_count": len(tools),
        "tokens": {"cl100k_base": sum(tool.token_counts.get("cl100k_base", 0) for tool in tools)},
        "model_tokens": {"cl100k_base": sum(tool.model_counts.get("cl100k_base", 0) for tool in tools)},
        "features_version": FEATURES_VERSION,
        "last_listed_at": 1.0,
    }
    return ServerRecord.model_validate({"server_id": server_id, "endpoint": Endpoint(), "revision": 1} | told | more)


def catalogue(*tools: IndexedTool, **more: object) -> FakeIndex:
    """Return an index of these tools and their servers, whose records say `more`."""
    index, embedder = FakeIndex(), FakeEmbedder()
    index.upsert([ingested(tool, embedder) for tool in tools])
    for server_id in {tool.server_id for tool in tools}:
        own = [tool for tool in tools if tool.server_id == server_id]
        index.put_server(record_of(server_id, *own, groups=own[0].groups, **more))
    return index


def clock() -> FakeIndex:
    return catalogue(
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
        self.feed(response.content.decode("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
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
    assert not {"script", "b"} & page.elements


async def test_a_broken_followed_file_is_shown_and_a_usable_one_is_named(tmp_path: Path) -> None:
    broken = FollowedConfig(path="/mcp.json", problem="/mcp.json: not JSON: line 1, column 2")

    async with http_client(app_of(clock(), followed=broken)) as http:
        overview = Parsed(await http.get("/ui"))
    async with http_client(app_of(clock(), followed=FollowedConfig(path="/mcp.json"))) as http:
        servers = Parsed(await http.get("/ui/servers"))

    assert "/mcp.json: not JSON: line 1, column 2; the last usable content stays in use" in overview.text
    assert "Follows  /mcp.json" in servers.text


async def test_a_caller_with_groups_does_not_see_the_followed_file(tmp_path: Path) -> None:
    known = static(tmp_path / "t.toml", ann=entry("good", groups=["team"]))
    followed = FollowedConfig(path="/secret/mcp.json", problem="/secret/mcp.json: missing")

    async with http_client(app_of(clock(), known, followed=followed), "good") as http:
        pages = [(await http.get(path)).text for path in ("/ui", "/ui/servers")]

    assert not [page for page in pages if "/secret" in page]


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_forbids_scripts_frames_and_what_comes_from_elsewhere(path: str) -> None:
    page = await get(path)

    assert page.status_code == 200
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "script" not in CONTENT_SECURITY_POLICY
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not {"script", "iframe", "style"} & Parsed(page).elements
    assert "style" not in Parsed(page).attributes


@pytest.mark.parametrize("file", ["page.css", "icon.svg"])
async def test_style_and_pictures_are_our_own(file: str) -> None:
    answer = await get(f"/ui/static/{file}")

    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] in ("text/css", "image/svg+xml")
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_browser_at_the_root_is_led_to_the_page() -> None:
    answer = await get("/")

    assert (answer.status_code, answer.headers["location"]) == (307, "/ui")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_page_can_only_be_read(method: str) -> None:
    async with http_client(app_of(clock())) as http:
        assert (await http.request(method, "/ui")).status_code == 405


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
    index = catalogue(make_tool("clock", "get_time"), tool_count=tools)
    large = Catalogue(index, FakeEmbedder(), Ledger(index), index_is_embedded=index_is_embedded)

    shown = render(overview(PageRequest(ANYONE, large, {}, {})), page_name="overview", caller=ANYONE).body

    assert (b"more than 20,000 tools: set QDRANT_URL" in shown) is is_advised


async def test_a_server_that_is_stale_shows_since_when_and_why() -> None:
    index = catalogue(make_tool("clock", "t"), stale_since=2.0, last_error="connection refused")

    for path in ("/ui", "/ui/servers", "/ui/servers/clock"):
        text = Parsed(await get(path, index)).text
        assert "stale" in text
        assert "connection refused" in text


async def test_a_server_that_could_never_be_listed_shows_its_error_and_is_not_stale() -> None:
    index = clock()
    failed = {"endpoint": Endpoint(transport="stdio"), "stale_since": 2.0, "last_error": "connection refused"}
    index.put_server(ServerRecord.model_validate({"server_id": "new", "revision": 9} | failed))

    for path in ("/ui", "/ui/servers", "/ui/servers/new"):
        text = " ".join(Parsed(await get(path, index)).text.split())
        assert "connection refused" in text
        assert "failing" in text
        assert "stale" not in text.replace("Stale since", "")


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
    index = catalogue(
        *(make_tool("big", f"tool{number:03}", tokens=1_000, model_tokens=number) for number in range(250))
    )

    pages = [await get(path, index) for path in ("/ui/servers/big", "/ui/servers/big?page=3")]
    first, last = (Parsed(page).text for page in pages)

    assert first.index("tool249") < first.index("tool248") < first.index("tool150")
    assert "tool149" not in first
    assert 'aria-label="Page 3 of 3" aria-current="page"' in pages[1].text
    assert "tool049" in last
    assert "tool050" not in last


@pytest.mark.parametrize("page", ["0", "-1", "99999999999999999999", "\u0663", "x"])
async def test_a_page_number_that_is_none_shows_some_page(page: str) -> None:
    assert (await get(f"/ui/servers/clock?page={page}")).status_code == 200


async def test_a_search_shows_tools_and_what_they_save() -> None:
    text = " ".join(Parsed(await get("/ui/find?q=tell+the+time")).text.split())

    assert text.index("All tools 80 tokens, as a model sees them; 100 as sent") < text.index("get_time of clock")
    assert "Took" in text


async def test_a_question_that_is_too_long_is_refused_with_the_reason() -> None:
    answer = await get("/ui/find?q=" + "x" * 5_000)

    assert answer.status_code == 400
    assert "tool_description" in answer.text


async def test_a_cursor_that_is_none_of_ours_is_refused() -> None:
    assert (await get("/ui/find?q=time&cursor=abc")).status_code == 400


def test_searches_of_the_page_are_not_recorded(usage: Usage) -> None:
    index = clock()
    with recorded(Catalogue(index, FakeEmbedder(), Ledger(index)), usage) as catalogue:
        page = find(PageRequest(ANYONE, catalogue, {}, {"q": "time"}, "http://127.0.0.1:8765"))

    assert page.status == 200
    assert usage.rows(today(), today()) == {}


async def test_a_server_that_does_not_exist_has_no_page() -> None:
    assert (await get("/ui/servers/nothing")).status_code == 404


async def test_while_the_index_is_down_the_page_says_so() -> None:
    index = clock()
    index.is_down = True

    answer = await get("/ui", index)

    assert answer.status_code == 503
    assert "cannot be reached" in answer.text


# --- hostile names ---


@pytest.mark.parametrize("path", ["/ui", "/ui/servers", "/ui/servers/s", "/ui/find?q=alert", "/ui/history"])
async def test_nothing_that_a_server_says_becomes_markup(path: str, usage: Usage) -> None:
    told = {"last_error": HOSTILE, "declared_name": HOSTILE, "protocol_version": HOSTILE}
    rejected = [RejectedTool(name=HOSTILE, reason=HOSTILE)]
    index = catalogue(make_tool("s", HOSTILE, f"alert {HOSTILE}\ud800", groups=[HOSTILE]), rejected=rejected, **told)

    async with http_client(app_of(index, usage=usage)) as http:
        page = Parsed(await http.get(path))

    assert not {"script", "iframe"} & page.elements
    assert "onerror" not in page.attributes
    assert page.sources == {"/ui/static/icon.svg"}
    assert "\u202e" not in page.text
    assert "1337" not in page.text  # a template in a name is not run
    if path != "/ui/history":
        assert "<script>alert(1)</script>" in page.text


@pytest.mark.parametrize("path", ["/ui", "/ui/servers/s"])
async def test_a_tool_with_marked_texts_needs_attention(path: str) -> None:
    page = Parsed(await get(path, catalogue(make_tool("s", "hiding", "Read.\ufffd"), marked=("hiding",))))

    assert "invisible characters" in page.text


@pytest.mark.parametrize("path", ["/ui", "/ui/servers", "/ui/servers/s"])
@pytest.mark.parametrize(("held", "state"), [(0, "not accepted"), (2, "held")])
async def test_changed_definitions_need_attention(path: str, held: int, state: str) -> None:
    text = Parsed(await get(path, catalogue(make_tool("s", "t"), unaccepted=2, held=held))).text

    assert "2 changed definitions" in text or "2 of its tools have changed definitions" in text
    assert path == "/ui" or (state in text and "toolscale diff" in text)
    assert "changed definition" not in Parsed(await get(path, catalogue(make_tool("s", "t")))).text


async def test_a_question_never_becomes_markup() -> None:
    page = Parsed(await get("/ui/find?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E"))

    assert "script" not in page.elements


async def test_the_name_of_a_server_is_one_part_of_an_address() -> None:
    index = catalogue(make_tool("a/../b?c#d", "t"))

    listed = await get("/ui/servers", index)

    assert 'href="/ui/servers/a%2F..%2Fb%3Fc%23d"' in listed.text
    assert (await get("/ui/servers/a%2F..%2Fb%3Fc%23d", index)).status_code == 200


def test_what_nobody_can_see_is_made_visible() -> None:
    assert printable("a\u202eb\x00c\ud800\nd") == "a\ufffdb\ufffdc\ufffd d"


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


@pytest.mark.parametrize("path", PAGES)
async def test_a_caller_sees_its_own_servers_alone(known: Authentication, path: str) -> None:
    answer = await get(path, None, known, authorization="Bearer good")

    assert answer.status_code == 200
    assert "files" not in answer.text


async def test_a_foreign_server_is_as_unknown_as_one_that_does_not_exist(known: Authentication) -> None:
    foreign, none = [
        await get(f"/ui/servers/{server}", None, known, authorization="Bearer good") for server in ("files", "x")
    ]

    assert foreign.status_code == 404
    assert foreign.content == none.content


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


class Unreachable(Authentication):
    """Authentication whose issuer does not answer."""

    async def caller(self, token: str) -> Caller:
        raise KeysUnavailable("the issuer's keys cannot be fetched")


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
