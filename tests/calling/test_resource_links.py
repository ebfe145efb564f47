"""Links that tools return, read through the query service from scripted servers."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    SERVER_INFO_META_KEY,
    BlobResourceContents,
    EmbeddedResource,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from query.answers.budget import ResponsePolicy, counting
from query.answers.links import PREFIX, UNKNOWN
from query.caller import Caller
from query.calling.limits import CallLimits
from query.catalogue import Catalogue, recorded
from query.kept import Kept, MemoryEntries, new_name
from query.mcp import NOTICE_URI, service_of
from query.tool import CATALOGUE_UNREACHABLE, CURSOR_STORE_UNAVAILABLE
from query.tools.revisions import SERVER_KEY
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import RowKey, today
from shared.toolset import Toolset
from shared.upstream.target import HttpTarget, Target
from tests.support.calling import PATIENT, catalogue_of, replicated, upstreams_to
from tests.support.fakes import FakeIndex, make_tool
from tests.support.hostile.messages import Message, failure, initialized, result
from tests.support.hostile.processes import callable_target
from tests.support.hostile.scripted_http import Exchange, Respond, ScriptedServer, scripted_http
from tests.support.hostile.scripts import answers, hangs, status
from tests.support.http_callers import URL, app_of, http_client, mcp_client
from tests.support.present import present
from tests.support.silent_entries import SilentEntries

pytestmark = [pytest.mark.process, pytest.mark.anyio]

both_eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
MEGABYTE = 1 << 20
NOTES, GOOD = "file:///notes.txt", "file:///good.txt"
COUNT = counting("cl100k_base")
ANN, BOB = Caller("ann"), Caller("bob")
NOT_FOUND: Mapping[str, int] = {"legacy": -32002, "2026-07-28": INVALID_PARAMS}


Act = Callable[[Exchange], None]


@dataclass
class Library:
    """A scripted server: each call returns links to all resources, or to `links`; some reads act.

    `read` has the URIs of all reads.
    """

    resources: Mapping[str, Message] = field(default_factory=dict[str, Message])
    acts: Mapping[str, Act] = field(default_factory=dict[str, Act])
    links: Sequence[str] = ()
    read: list[str] = field(default_factory=list[str])

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        request = exchange.request_json
        match exchange.method:
            case "initialize":
                exchange.send_json(initialized(request))
            case "tools/call":
                links = [
                    {"type": "resource_link", "name": uri, "uri": uri}
                    for uri in self.links or [*self.resources, *self.acts]
                ]
                exchange.send_json(result(request, {"content": links}))
            case "resources/read":
                self._read(exchange, request["params"]["uri"])
            case _ if "id" in request:
                exchange.send_json(failure(request, -32601, "unknown method"))
            case _:
                exchange.send(202)

    def _read(self, exchange: Exchange, uri: str) -> None:
        self.read.append(uri)
        request = exchange.request_json
        if act := self.acts.get(uri):
            act(exchange)
        elif resource := self.resources.get(uri):
            exchange.send_json(result(request, {"contents": [{"uri": uri, **resource}]}))
        else:
            exchange.send_json(failure(request, -32002, "no such file"))


@asynccontextmanager
async def served(
    catalogue: Catalogue,
    targets: Mapping[str, Target],
    *callers: Caller,
    mode: str = "legacy",
    limits: CallLimits = PATIENT,
) -> AsyncGenerator[list[Client]]:
    """Yield a client for each caller of a service with this catalogue."""
    upstreams = upstreams_to(targets, limits)
    async with (
        Client(service_of(catalogue, upstreams, lambda _: callers[0]), mode=mode) as first,
        Client(service_of(catalogue, upstreams, lambda _: callers[-1]), mode=mode) as last,
    ):
        yield [first, last]


@asynccontextmanager
async def reading(
    library: Respond,
    *callers: Caller,
    catalogue: Catalogue | None = None,
    mode: str = "legacy",
    limits: CallLimits = PATIENT,
) -> AsyncGenerator[list[Client]]:
    """Yield a client for each caller of a service whose server `files` is this library."""
    known = catalogue or catalogue_of([OPEN])
    with scripted_http(library) as files:
        async with served(known, {"files": at(files)}, *(callers or (ANN,)), mode=mode, limits=limits) as clients:
            yield clients


def at(server: ScriptedServer) -> Target:
    return HttpTarget(server.url)


async def links_of(client: Client, tool: str = "files:open", direct: str = "") -> list[str]:
    """Call a tool, by `call_tool` or by its name in the toolset, and return the links of its result."""
    called = await client.call_tool(direct or "call_tool", {} if direct else {"tool_name": tool})
    assert not called.is_error, called.content
    return [block.uri for block in called.content if isinstance(block, ResourceLink)]


def text_of(read: ReadResourceResult) -> str:
    (contents,) = read.contents
    assert isinstance(contents, TextResourceContents)
    return contents.text


async def error_of(client: Client, uri: str) -> MCPError:
    with pytest.raises(MCPError) as caught:
        await client.read_resource(uri)
    return caught.value


OPEN, LINKS = make_tool("files", "open"), make_tool("s", "links")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_link_that_a_tool_returned_can_be_read(mode: str) -> None:
    async with reading(Library({NOTES: {"text": "buy milk", "mimeType": "text/plain"}}), mode=mode) as (client, _):
        assert client.server_capabilities.resources is not None
        (link,) = await links_of(client)
        read = await client.read_resource(link)
        listed, templates = await client.list_resources(), await client.list_resource_templates()

    (contents,) = read.contents
    assert contents == TextResourceContents(uri=link, text="buy milk", mime_type="text/plain")
    assert link.startswith(PREFIX)
    assert link.endswith(f"/{NOTES}")
    assert (listed.resources, templates.resource_templates) == ([], [])
    assert (read.ttl_ms, read.cache_scope) == (0, "private")


async def test_without_servers_to_read_from_no_resources_are_announced() -> None:
    async with Client(service_of(catalogue_of([OPEN]))) as client:
        assert client.server_capabilities.resources is None


async def test_links_to_the_same_uri_lead_to_the_servers_that_gave_them() -> None:
    mine, yours = Library({NOTES: {"text": "mine"}}), Library({NOTES: {"text": "yours"}})
    catalogue = catalogue_of([OPEN, make_tool("mail", "open")])
    with scripted_http(mine) as files, scripted_http(yours) as mail:
        async with served(catalogue, {"files": at(files), "mail": at(mail)}, ANN) as (client, _):
            (first,), (second,) = await links_of(client), await links_of(client, "mail:open")
            texts = [text_of(await client.read_resource(link)) for link in (first, second, first)]

    assert texts == ["mine", "yours", "mine"]


@pytest.mark.parametrize("answering", ["a", "b"])
async def test_a_link_leads_to_the_replica_that_answered_the_call(answering: str) -> None:
    resources = {name: {NOTES: {"text": f"of {name}"}} for name in ("a", "b")}
    catalogue = replicated(resources, make_tool("any", "open"), first=answering)
    with scripted_http(Library(resources["a"])) as first, scripted_http(Library(resources["b"])) as second:
        async with served(catalogue, {"a": at(first), "b": at(second)}, ANN) as (client, _):
            (link,) = (await client.call_tool("call_tool", {"tool_name": "open"})).content
            assert isinstance(link, ResourceLink)
            texts = [text_of(await client.read_resource(link.uri)) for _ in range(5)]

    assert texts == [f"of {answering}"] * 5


@both_eras
async def test_an_unknown_resource_is_the_error_of_the_revision(mode: str) -> None:
    library = Library({NOTES: {"text": "buy milk"}})
    async with reading(library, ANN, BOB, mode=mode) as (ann, bob):
        (link,) = await links_of(ann)
        errors = {
            uri: await error_of(bob if uri == link else ann, uri)
            for uri in (link, link.replace("notes", "other"), f"{PREFIX}{new_name()}/{NOTES}", NOTES, PREFIX, "")
        }

    assert {(error.code, error.message) for error in errors.values()} == {(NOT_FOUND[mode], UNKNOWN)}
    assert all(error.data == {"uri": uri} for uri, error in errors.items())
    assert library.read == []


async def test_another_replica_reads_a_link_from_the_shared_store() -> None:
    entries = MemoryEntries()
    first, second = (replace(catalogue_of([OPEN]), response_policy=ResponsePolicy(Kept(entries))) for _ in range(2))
    with scripted_http(Library({NOTES: {"text": "buy milk"}})) as files:
        async with served(first, {"files": at(files)}, ANN) as (client, _):
            (link,) = await links_of(client)
        async with served(second, {"files": at(files)}, ANN) as (client, _):
            assert text_of(await client.read_resource(link)) == "buy milk"


async def test_while_the_store_is_down_a_call_has_its_result_and_its_links_are_unknown_later() -> None:
    entries = SilentEntries()
    catalogue = replace(catalogue_of([OPEN]), response_policy=ResponsePolicy(Kept(entries)))
    async with reading(Library({NOTES: {"text": "buy milk"}}), catalogue=catalogue) as (client, _):
        (link,) = await links_of(client)
        while_down = await error_of(client, link)
        entries.is_down = False
        later = await error_of(client, link)

    assert (while_down.code, while_down.message) == (INTERNAL_ERROR, CURSOR_STORE_UNAVAILABLE)
    assert later.message == UNKNOWN


# --- the scope at the time of the read ---


async def test_a_caller_that_left_the_group_reads_no_link_of_it() -> None:
    catalogue = catalogue_of([make_tool("files", "open", groups=["team"])])
    before, after = Caller("ann", frozenset({"team"})), Caller("ann", frozenset({"other"}))
    async with reading(Library({NOTES: {"text": "buy milk"}}), before, after, catalogue=catalogue) as (member, former):
        (link,) = await links_of(member)
        assert text_of(await member.read_resource(link)) == "buy milk"
        error = await error_of(former, link)

    assert (error.code, error.message) == (-32002, UNKNOWN)


@both_eras
async def test_the_path_of_a_toolset_limits_what_is_read(mode: str) -> None:
    catalogue = catalogue_of([OPEN, make_tool("files", "close")])
    assert isinstance(catalogue.index, FakeIndex)
    catalogue.index.put_toolset(Toolset(name="within", tools=("files",)))
    catalogue.index.put_toolset(Toolset(name="without", tools=("files:close",)))
    library = Library({NOTES: {"text": "buy milk"}})
    with scripted_http(library) as files:
        upstreams = upstreams_to({"files": at(files)})
        async with http_client(app_of(catalogue.index, upstreams=upstreams)) as http:
            async with mcp_client(http, mode) as client:
                (link,) = await links_of(client)
            async with mcp_client(http, mode, f"{URL}/within") as client:
                (direct,) = await links_of(client, direct="files__open")
                for each in (link, direct):
                    assert text_of(await client.read_resource(each)) == "buy milk"
            async with mcp_client(http, mode, f"{URL}/without") as client:
                error = await error_of(client, link)

    assert error.message == UNKNOWN
    assert library.read == [NOTES, NOTES]


async def test_a_caller_without_the_permission_to_call_reads_nothing() -> None:
    reader = Caller("ann", permissions=frozenset({"catalog:read"}))
    library = Library({NOTES: {"text": "buy milk"}})
    async with reading(library, ANN, reader) as (client, weak):
        (link,) = await links_of(client)
        error = await error_of(weak, link)

    assert error.message == "You may not use resources/read: it needs the permission tools:call."
    assert library.read == []


@pytest.mark.parametrize("status", ["stopped", "quarantined"])
async def test_a_server_that_stopped_since_is_named_and_not_asked(status: Literal["stopped", "quarantined"]) -> None:
    catalogue = catalogue_of([OPEN])
    library = Library({NOTES: {"text": "buy milk"}})
    async with reading(library, catalogue=catalogue) as (client, _):
        (link,) = await links_of(client)
        record = present(catalogue.index.server("files"))
        catalogue.index.put_server(record.model_copy(update={"status": status}))
        error = await error_of(client, link)

    assert error.code == INTERNAL_ERROR
    assert error.message.startswith(f"files: is {status}")
    assert library.read == []


async def test_an_index_that_does_not_answer_is_an_error() -> None:
    catalogue = catalogue_of([OPEN])
    assert isinstance(catalogue.index, FakeIndex)
    async with reading(Library({NOTES: {"text": "buy milk"}}), catalogue=catalogue) as (client, _):
        (link,) = await links_of(client)
        catalogue.index.is_down = True
        error = await error_of(client, link)

    assert (error.code, error.message) == (INTERNAL_ERROR, CATALOGUE_UNREACHABLE)


# --- what becomes a link ---


async def test_uris_of_the_web_and_of_embedded_resources_stay_as_they_are() -> None:
    embedded = {"type": "resource", "resource": {"uri": NOTES, "text": "buy milk"}}
    web = {"type": "resource_link", "name": "page", "uri": "HTTPS://example.org/page"}

    def respond(exchange: Exchange) -> None:
        if exchange.method == "tools/call":
            exchange.send_json(result(exchange.request_json, {"content": [embedded, web]}))
        else:
            Library()(exchange)

    async with reading(respond) as (client, _):
        called = await client.call_tool("call_tool", {"tool_name": "files:open"})

    block, link = called.content
    assert isinstance(block, EmbeddedResource)
    assert block.resource.uri == NOTES
    assert isinstance(link, ResourceLink)
    assert link.uri == "HTTPS://example.org/page"


async def test_the_parts_of_a_resource_are_links_too() -> None:
    def directory(exchange: Exchange) -> None:
        parts = [{"uri": "file:///", "text": "notes.txt"}, {"uri": NOTES, "text": "buy milk"}]
        exchange.send_json(result(exchange.request_json, {"contents": parts}))

    files_of = Library({NOTES: {"text": "buy milk"}}, {"file:///": directory}, ["file:///"])
    async with reading(files_of) as (client, _):
        (link,) = await links_of(client)
        whole, part = (await client.read_resource(link)).contents
        text = text_of(await client.read_resource(part.uri))

    assert whole.uri == link
    assert text == "buy milk"


# --- sizes ---


@both_eras
async def test_a_long_resource_is_paged_within_the_budget_and_call_tool_returns_the_rest(mode: str) -> None:
    text = " ".join(f"word{number}" for number in range(3_000))
    catalogue = replace(catalogue_of([OPEN]), response_policy=ResponsePolicy(max_tokens=1_000))
    library = Library({NOTES: {"text": text, "mimeType": "text/plain"}})
    async with reading(library, catalogue=catalogue, mode=mode) as (client, _):
        (link,) = await links_of(client)
        first, notice = (await client.read_resource(link)).contents
        assert isinstance(first, TextResourceContents)
        assert isinstance(notice, TextResourceContents)
        assert (first.uri, notice.uri) == (link, NOTICE_URI)
        texts, notices = [first.text], [notice.text]
        while len(notices) == len(texts):
            cursor = json.loads(notices[-1])["nextCursor"]
            shown, *further = (await client.call_tool("call_tool", {"cursor": cursor})).content
            assert isinstance(shown, TextContent)
            texts.append(shown.text)
            notices += [block.text for block in further if isinstance(block, TextContent)]

    assert "".join(texts) == text
    assert [COUNT(page) < 1_000 for page in texts] == [True] * 9
    assert library.read == [NOTES]


@both_eras
async def test_a_binary_resource_passes_whole(mode: str) -> None:
    blob = base64.b64encode(bytes(range(256)) * 2_000).decode()
    async with reading(Library({NOTES: {"blob": blob, "mimeType": "image/png"}}), mode=mode) as (client, _):
        (link,) = await links_of(client)
        (contents,) = (await client.read_resource(link)).contents

    assert contents == BlobResourceContents(uri=link, blob=blob, mime_type="image/png")


@pytest.mark.parametrize("form", ["text", "blob"])
async def test_a_resource_above_the_limit_of_a_message_is_an_error_and_the_next_read_works(form: str) -> None:
    limits = CallLimits(timeout_s=30, max_message_bytes=MEGABYTE)
    resources: dict[str, Any] = {NOTES: {form: "QUJD" * MEGABYTE}, "file:///small": {"text": "small"}}
    async with reading(Library(resources), limits=limits) as (client, _):
        giant, small = await links_of(client)
        error = await error_of(client, giant)
        assert text_of(await client.read_resource(small)) == "small"

    assert error.code == INTERNAL_ERROR
    assert error.message.startswith("files: ")


# --- failures of the server ---


@pytest.mark.parametrize("code", [-32002, INVALID_PARAMS])
@both_eras
async def test_a_resource_that_the_server_lost_is_unknown(code: int, mode: str) -> None:
    def lost(exchange: Exchange) -> None:
        exchange.send_json(failure(exchange.request_json, code, "no such file"))

    async with reading(Library(acts={NOTES: lost}), mode=mode) as (client, _):
        (link,) = await links_of(client)
        error = await error_of(client, link)

    assert error.code == NOT_FOUND[mode]
    assert error.message == f'files: answers with an error: "no such file" ({code})'
    assert error.data == {"uri": link}


def fails(exchange: Exchange) -> None:
    exchange.send_json(failure(exchange.request_json, -32050, "the disk is on fire"))


FAILURES: dict[str, tuple[Act, str]] = {
    "error": (fails, 'files: answers with an error: "the disk is on fire" (-32050)'),
    "no method": (
        lambda exchange: exchange.send_json(failure(exchange.request_json, -32601, "?")),
        'files: answers with an error: "?" (-32601)',
    ),
    "no contents": (answers({}), "files: answers with an invalid result: "),
    "a tool's result": (answers({"content": []}), "files: answers with an invalid result: "),
    "contents of neither form": (answers({"contents": [{"uri": NOTES}]}), "files: answers with an invalid result: "),
    "refused": (status(403), "files: "),
    "silence": (hangs, "files: no answer within 2 s"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_server_that_fails_is_an_error_that_names_it_and_the_next_read_works(name: str) -> None:
    act, message = FAILURES[name]
    with scripted_http(Library({GOOD: {"text": "good"}}, {NOTES: act}, [NOTES, GOOD])) as files:
        limits = CallLimits(timeout_s=2)
        async with served(catalogue_of([OPEN]), {"files": at(files)}, ANN, limits=limits) as (client, _):
            bad, good = await links_of(client)
            error = await error_of(client, bad)
            assert text_of(await client.read_resource(good)) == "good"

    assert error.code == INTERNAL_ERROR
    assert error.message.startswith(message)


async def test_reads_count_as_calls_in_flight() -> None:
    limits = CallLimits(timeout_s=30, per_caller=0)
    with scripted_http(Library({NOTES: {"text": "buy milk"}})) as files:
        catalogue = catalogue_of([OPEN])
        async with served(catalogue, {"files": at(files)}, ANN) as (client, _):
            (link,) = await links_of(client)
        async with served(catalogue, {"files": at(files)}, ANN, limits=limits) as (client, _):
            error = await error_of(client, link)

    assert error.message.startswith("ann has 0 calls in flight")


# --- log, metrics and history ---


async def test_one_log_line_has_the_caller_and_the_outcome_of_a_read_and_never_the_uri() -> None:
    async with reading(Library({"file:///secret": {"text": "secret"}}, {"file:///secret/lost": fails})) as (client, _):
        link, lost = await links_of(client)
        with structlog.testing.capture_logs() as lines:
            await client.read_resource(link)
            await error_of(client, lost)
            await error_of(client, "file:///secret")

    called = [line for line in lines if line["event"] == "tool_called"]
    assert [(line["caller"], line["server"], line["tool"], line["outcome"]) for line in called] == [
        ("ann", "files", "resources/read", "ok"),
        ("ann", "files", "resources/read", "ServerFailed"),
        ("ann", None, "resources/read", "ResourceNotFound"),
    ]
    assert "secret" not in repr(lines)


@both_eras
async def test_the_history_has_what_toolscale_added_to_links_and_the_bytes_of_resources(
    tmp_path: Path, mode: str
) -> None:
    text = "word " * 3_000
    with ExitStack() as stack:
        usage = stack.enter_context(closing(SqliteUsage(tmp_path / "savings.sqlite3", 30)))
        made = replace(catalogue_of([OPEN]), response_policy=ResponsePolicy(max_tokens=1_000))
        with scripted_http(Library({NOTES: {"text": text}})) as files, recorded(made, usage) as catalogue:
            async with served(catalogue, {"files": at(files)}, ANN, mode=mode) as (client, _):
                (link,) = await links_of(client)
                page, notice = (await client.read_resource(link)).contents
                await error_of(client, NOTES)
        rows = usage.rows(today(), today())

    assert isinstance(page, TextResourceContents)
    assert isinstance(notice, TextResourceContents)
    added = link.removesuffix(NOTES)
    tools = {key.tool: counts for key, counts in rows.items() if not key.server}
    assert tools["call_tool"] == {"answers": 1, "tokens": COUNT(added), "bytes": len(added)}
    assert tools["resources/read"] == {
        "answers": 1,
        "tokens": COUNT(added) + COUNT(notice.text),
        "bytes": len(added) + len(notice.text),
    }
    used = rows[RowKey(today(), "ann", "files", "open")]
    assert used["calls"] == 1
    assert used["bytes"] > len(text)


@both_eras
@pytest.mark.parametrize(
    "uri",
    [
        "file:///a b/ü?x=1&y=%2F#part",
        "file:///a/../b/./.hidden",
        "custom:opaque:%25",
        "db://7//",
        "urn:isbn:0451450523",
        "toolscale://link/x/y/z",
        "x" * 5_000,
    ],
)
async def test_any_uri_of_a_server_with_any_id_reaches_it_unchanged(uri: str, mode: str) -> None:
    tool = make_tool("io.github.acme/files@2", "open/it now")
    library = Library({uri: {"text": "found"}})
    with scripted_http(library) as files:
        async with served(catalogue_of([tool]), {tool.server_id: at(files)}, ANN, mode=mode) as (client, _):
            (link,) = await links_of(client, tool.qualified_name)
            assert text_of(await client.read_resource(link)) == "found"

    assert link.isascii()
    assert library.read == [uri]


# --- servers of the SDK, over every transport ---


@pytest.fixture(scope="module", params=["stdio", "http", "legacy", "sse"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with callable_target(request.param) as target:
        yield target


async def link_to(client: Client, tool: str, **arguments: Any) -> str:
    """Return a link whose resource is the text that this tool of the callable server returns."""
    parameters = {"tool": tool, "arguments": arguments}
    called = await client.call_tool("call_tool", {"tool_name": "s:links", "parameters": parameters})
    (link,) = called.content
    assert isinstance(link, ResourceLink)
    return link.uri


@both_eras
async def test_a_resource_is_read_over_every_transport_with_the_metadata_of_the_request(
    target: Target, mode: str
) -> None:
    ours: Any = {"example.org/session": {"id": 7}, "io.modelcontextprotocol/logLevel": "debug"}
    async with served(catalogue_of([LINKS]), {"s": target}, ANN, mode=mode) as (client, _):
        read = await client.read_resource(await link_to(client, "hears"), meta=ours)

    heard = json.loads(text_of(read))
    assert heard["example.org/session"] == {"id": 7}
    assert "io.modelcontextprotocol/logLevel" not in heard
    assert (read.meta or {}).items() >= {"example.org/trace": "abc", SERVER_KEY: "s"}.items()
    about: Any = (read.meta or {}).get(SERVER_INFO_META_KEY)
    assert about is None if mode == "legacy" else about["name"] == "toolscale"
