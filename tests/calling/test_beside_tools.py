"""Prompts, resources, templates and completions of the servers of a toolset, which are real ones."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import structlog
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    ElicitRequestParams,
    ElicitResult,
    ListPromptsResult,
    PromptReference,
    ReadResourceResult,
    ResourceLink,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from query import toolset_servers
from query.answers.budget import ResponsePolicy
from query.answers.links import UNKNOWN
from query.caller import Caller
from query.catalogue import Catalogue, recorded
from query.mcp import service_of
from query.policy import Policy, Rule
from query.tools.revisions import INVISIBLE, SERVER_KEY, WARNINGS_KEY
from query.toolset_servers import MAX_TTL_MS
from query.toolsets.offers import direct_name
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import RowKey, today
from shared.catalog import IndexedTool, ToolDefinition
from shared.toolset import Toolset
from shared.upstream.options import ServerOptions
from shared.upstream.target import HttpTarget, Target
from tests.support.calling import catalogue_of, options_of, replicated, upstreams_to
from tests.support.fakes import FakeIndex, make_tool
from tests.support.hostile.library_server import CITIES, UI
from tests.support.hostile.processes import callable_stdio, library_stdio
from tests.support.hostile.scripted_http import scripted_http
from tests.support.hostile.scripts import hangs

pytestmark = [pytest.mark.process, pytest.mark.anyio]

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])
ANN, BOB = Caller("ann", toolset="dev"), Caller("bob", toolset="dev")
OPEN = make_tool("files", "open")
MAIL = make_tool("mail", "open")
ODD = "no plain name"


def with_toolset(catalogue: Catalogue, *entries: str, name: str = "dev") -> Catalogue:
    assert isinstance(catalogue.index, FakeIndex)
    catalogue.index.put_toolset(Toolset(name=name, tools=entries))
    return catalogue


@asynccontextmanager
async def serving(
    catalogue: Catalogue, targets: Mapping[str, Target], *callers: Caller, mode: str = "auto"
) -> AsyncGenerator[list[Client]]:
    """Yield a client for each of two callers of a service with this catalogue."""
    upstreams = upstreams_to(targets)
    async with (
        Client(service_of(catalogue, upstreams, lambda _: (callers or (ANN,))[0]), mode=mode, cache=None) as first,
        Client(service_of(catalogue, upstreams, lambda _: (callers or (ANN,))[-1]), mode=mode, cache=None) as last,
    ):
        yield [first, last]


@asynccontextmanager
async def two_libraries(*callers: Caller, mode: str = "auto") -> AsyncGenerator[list[Client]]:
    """Yield clients of a service whose servers `files` and `mail` have the same prompts and resources."""
    catalogue = with_toolset(catalogue_of([OPEN, MAIL]), "files", "mail:open")
    targets = {"files": library_stdio("files"), "mail": library_stdio("mail")}
    async with serving(catalogue, targets, *callers, mode=mode) as clients:
        yield clients


def warnings_of(result: ListPromptsResult) -> list[str]:
    found: list[str] = (result.meta or {}).get(WARNINGS_KEY, [])
    return found


def text_of(read: ReadResourceResult) -> str:
    (contents,) = read.contents
    assert isinstance(contents, TextResourceContents)
    return contents.text


async def error_of_read(client: Client, uri: str) -> str:
    with pytest.raises(MCPError) as caught:
        await client.read_resource(uri)
    return caught.value.message


@both_eras
async def test_the_prompts_of_all_servers_of_the_toolset_are_listed_and_got_under_distinct_names(mode: str) -> None:
    async with two_libraries(mode=mode) as (client, _):
        assert client.server_capabilities.prompts is not None
        listed = (await client.list_prompts()).prompts
        got = {prompt.name: await client.get_prompt(prompt.name, {"city": "Bern"}) for prompt in listed}

    names = {direct_name(server, name): server for server in ("files", "mail") for name in ("greet", ODD)}
    assert {name: prompt.description for name, prompt in got.items()} == {
        name: f"by {server}" for name, server in names.items()
    }
    assert all((prompt.meta or {})[SERVER_KEY] == names[name] for name, prompt in got.items())
    text, question, _ = got["files__greet"].messages
    assert (text.role, question.role) == ("user", "assistant")
    assert text.content == TextContent(text="Greet Bern\ufffd from files.")


async def test_invisible_characters_are_marked_and_our_keys_of_metadata_are_not_the_servers_to_write() -> None:
    async with two_libraries() as (client, _):
        listed = await client.list_prompts()

    greet, odd = (next(p for p in listed.prompts if p.name == direct_name("files", name)) for name in ("greet", ODD))
    assert greet.description == "Greets\ufffd."
    assert odd.meta == {"x": 1}
    assert warnings_of(listed) == [INVISIBLE]


@both_eras
async def test_resources_are_links_that_lead_to_their_servers_and_stay_the_same(mode: str) -> None:
    async with two_libraries(mode=mode) as (client, _):
        first, again = await client.list_resources(), await client.list_resources()
        own = [resource.uri for resource in first.resources if resource.name == "shelf"]
        texts = {text_of(await client.read_resource(uri)) for uri in own}

    assert first.resources == again.resources
    assert texts == {"shelf://one/book 1 of files", "shelf://one/book 1 of mail"}
    assert {resource.uri for resource in first.resources} == {*own, "https://example.org/page"}


@both_eras
async def test_a_template_keeps_its_variables_and_its_expansion_reaches_the_server_as_it_is(mode: str) -> None:
    async with two_libraries(mode=mode) as (client, _):
        templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
        books = [template for template in templates if template.endswith("/books/{book}")]
        expanded = [book.replace("{shelf}", "a%20b").replace("{book}", "c%2Fd") for book in books]
        texts = {text_of(await client.read_resource(uri)) for uri in expanded}
        (search, _) = (template for template in templates if template.endswith("{?words}"))
        found = text_of(await client.read_resource(search.replace("{?words}", "?words=x")))
        outside = await error_of_read(client, expanded[0].replace("/books/", "/letters/"))

    assert texts == {"shelf://a%20b/books/c%2Fd of files", "shelf://a%20b/books/c%2Fd of mail"}
    assert found.startswith("shelf://search?words=x of ")
    assert outside == UNKNOWN


@both_eras
async def test_arguments_of_prompts_and_variables_of_templates_are_completed_by_their_server(mode: str) -> None:
    async with two_libraries(mode=mode) as (client, _):
        assert client.server_capabilities.completions is not None
        templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
        template = next(one for one in templates if one.endswith("/books/{book}"))
        of_prompt = await client.complete(PromptReference(name="mail__greet"), {"name": "city", "value": "B"})
        reference = ResourceTemplateReference(uri=template)
        of_template = await client.complete(reference, {"name": "shelf", "value": ""})

    assert of_prompt.completion.values == ["Bern", "Bonn", "greet\ufffd"]
    assert of_prompt.completion.has_more is False
    assert of_template.completion.values == [*CITIES, "shelf://{shelf}/books/{book}\ufffd"]


@both_eras
async def test_links_of_a_list_do_not_open_for_another_caller(mode: str) -> None:
    async with two_libraries(ANN, BOB, mode=mode) as (ann, bob):
        uris = [resource.uri for resource in (await ann.list_resources()).resources if resource.name == "shelf"]
        templates = (await ann.list_resource_templates()).resource_templates
        uris += [template.uri_template.replace("{", "").replace("}", "") for template in templates]
        errors = {await error_of_read(bob, uri) for uri in uris}

    assert errors == {UNKNOWN}


@both_eras
async def test_a_caller_without_a_toolset_has_empty_lists_and_no_server_is_asked(mode: str) -> None:
    async with serving(catalogue_of([OPEN]), {}, Caller("ann"), mode=mode) as (client, _):
        listed = await client.list_prompts(), await client.list_resources(), await client.list_resource_templates()
        with pytest.raises(MCPError, match="unknown prompt"):
            await client.get_prompt("files__greet")

    assert (listed[0].prompts, listed[1].resources, listed[2].resource_templates) == ([], [], [])
    assert all(result.meta is None or WARNINGS_KEY not in result.meta for result in listed)


async def test_without_servers_to_ask_nothing_is_announced() -> None:
    async with Client(service_of(catalogue_of([OPEN]))) as client:
        assert client.server_capabilities.prompts is None
        assert client.server_capabilities.completions is None


@pytest.mark.parametrize(
    ("entries", "groups", "rules"),
    [
        (("files", "mail"), (), [Rule(servers=("mail",), action="deny")]),
        (("files",), (), []),
        (("files", "mail:other"), (), []),
        (("files", "mail"), ("secret",), []),
    ],
    ids=["denied by the policy", "no server of the toolset", "no tool of the toolset", "not in the caller's groups"],
)
async def test_a_server_of_which_the_caller_may_call_no_tool_has_no_prompts_and_no_resources(
    entries: Sequence[str], groups: Sequence[str], rules: list[Rule]
) -> None:
    tools = [make_tool("files", "open", groups=["dev"]), make_tool("mail", "open", groups=groups or ["dev"])]
    catalogue = with_toolset(catalogue_of(tools), *entries)
    catalogue = replace(catalogue, read_policy=lambda: Policy(rules=tuple(rules)))
    targets = {"files": library_stdio("files"), "mail": library_stdio("mail")}
    async with serving(catalogue, targets, replace(ANN, groups=frozenset({"dev"}))) as (client, _):
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        resources = [resource for resource in (await client.list_resources()).resources if resource.name == "shelf"]
        with pytest.raises(MCPError, match="unknown prompt") as error:
            await client.get_prompt("mail__greet")

    assert prompts == {"files__greet", direct_name("files", ODD)}
    assert len(resources) == 1
    assert error.value.code == INVALID_PARAMS


async def test_a_server_whose_tools_the_operator_excludes_is_not_asked_even_before_it_is_listed_again() -> None:
    catalogue = with_toolset(catalogue_of([OPEN, MAIL]), "files", "mail")
    options = options_of({"mail": ServerOptions(exclude_tools=("open",))})
    catalogue = replace(catalogue, read_options=options)
    async with serving(catalogue, {"files": library_stdio("files"), "mail": library_stdio("mail")}) as (client, _):
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}

    assert prompts == {"files__greet", direct_name("files", ODD)}


async def test_a_policy_that_changes_closes_links_and_names_of_earlier_lists() -> None:
    catalogue = with_toolset(catalogue_of([OPEN]), "files")
    rules: list[Rule] = []
    catalogue = replace(catalogue, read_policy=lambda: Policy(rules=tuple(rules)))
    async with serving(catalogue, {"files": library_stdio("files")}) as (client, _):
        link = (await client.list_resources()).resources[-1].uri
        assert text_of(await client.read_resource(link))
        rules.append(Rule(servers=("files",), action="deny"))
        denied = await error_of_read(client, link)
        with pytest.raises(MCPError, match="unknown prompt"):
            await client.get_prompt("files__greet")

    assert UNKNOWN in denied


async def test_a_caller_that_may_not_call_sees_nothing() -> None:
    reader = replace(ANN, permissions=frozenset({"catalog:read"}))
    async with two_libraries(reader) as (client, _):
        listed = await client.list_prompts()
        with pytest.raises(MCPError, match="needs the permission tools:call"):
            await client.get_prompt("files__greet")

    assert listed.prompts == []


@both_eras
async def test_a_server_that_is_slow_or_fails_is_left_out_with_a_warning_within_the_bound(mode: str) -> None:
    tools = [OPEN, make_tool("slow", "open"), make_tool("gone", "open"), make_tool("plain", "echo")]
    catalogue = with_toolset(catalogue_of(tools), "files", "slow", "gone", "plain")
    with scripted_http(hangs) as slow, patch.object(toolset_servers, "LIST_WITHIN_S", 4.0):
        targets: dict[str, Target] = {
            "files": library_stdio("files"),
            "plain": callable_stdio(),
            "slow": HttpTarget(slow.url),
            "gone": HttpTarget("http://127.0.0.1:1/mcp"),
        }
        async with serving(catalogue, targets, mode=mode) as (client, _):
            began_s = time.monotonic()
            listed = await client.list_prompts()
            took_s = time.monotonic() - began_s

    assert {prompt.name for prompt in listed.prompts} == {"files__greet", direct_name("files", ODD)}
    (left_out, *_) = warnings_of(listed)
    assert "slow: no answer within 4 s" in left_out
    assert "gone: " in left_out
    assert "plain" not in left_out
    assert took_s < 8
    assert listed.ttl_ms == 0


async def test_pages_have_each_prompt_once_and_their_cursor_is_the_callers_own() -> None:
    catalogue = with_toolset(catalogue_of([OPEN, MAIL]), "files", "mail")
    catalogue = replace(catalogue, response_policy=ResponsePolicy(max_tokens=60))
    targets = {"files": library_stdio("files"), "mail": library_stdio("mail")}
    async with serving(catalogue, targets, ANN, BOB) as (ann, bob):
        first = await ann.list_prompts()
        with pytest.raises(MCPError, match="cursor") as error:
            await bob.list_prompts(cursor=first.next_cursor)
        pages = [first]
        while pages[-1].next_cursor:
            pages.append(await ann.list_prompts(cursor=pages[-1].next_cursor))

    assert error.value.code == INVALID_PARAMS
    assert len(pages) > 1
    names = [prompt.name for page in pages for prompt in page.prompts]
    assert len(names) == len(set(names)) == 4


async def test_a_list_may_be_kept_as_long_as_its_servers_allow() -> None:
    async with two_libraries() as (client, _):
        listed = await client.list_prompts()
    async with serving(catalogue_of([OPEN]), {}, Caller("ann")) as (client, _):
        empty = await client.list_prompts()

    assert (listed.ttl_ms, listed.cache_scope) == (7_000, "private")
    assert empty.ttl_ms == MAX_TTL_MS


async def test_a_long_prompt_is_cut_and_call_tool_returns_the_rest() -> None:
    catalogue = with_toolset(catalogue_of([OPEN]), "files")
    catalogue = replace(catalogue, response_policy=ResponsePolicy(max_tokens=300))
    async with serving(catalogue, {"files": library_stdio("files")}) as (client, _):
        got = await client.get_prompt("files__greet", {"city": "word ", "times": "1000"})
        texts = [message.content.text for message in got.messages if isinstance(message.content, TextContent)]
        cursor = json.loads(texts[-1])["nextCursor"]
        rest = await client.call_tool("call_tool", {"cursor": cursor})

    assert not rest.is_error
    assert {message.role for message in got.messages} == {"user"}
    assert any(isinstance(message.content, ResourceLink) for message in got.messages)


async def test_what_a_server_asks_before_it_returns_a_prompt_reaches_the_client_and_the_answer_that_server() -> None:
    async def user(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"city": "Oslo"})

    catalogue = with_toolset(catalogue_of([OPEN]), "files")
    service = service_of(catalogue, upstreams_to({"files": library_stdio("files")}), lambda _: ANN)
    async with Client(service, elicitation_callback=user) as client:
        got = await client.get_prompt("files__ask")
    async with Client(service) as silent:
        with pytest.raises(MCPError, match="files"):
            await silent.get_prompt("files__ask")

    assert got.messages[0].content == TextContent(text="Oslo, half way, of files")


async def test_the_link_of_a_prompt_can_be_read() -> None:
    async with two_libraries() as (client, _):
        got = await client.get_prompt("mail__greet")
        link = got.messages[-1].content
        assert isinstance(link, ResourceLink)
        text = text_of(await client.read_resource(link.uri))

    assert text == "shelf://one/book 1 of mail"


async def test_an_unknown_prompt_is_an_error_of_its_server() -> None:
    async with two_libraries() as (client, _):
        with pytest.raises(MCPError, match=r"files: answers with an error: \"no prompt other\" \(-32602\)") as error:
            await client.get_prompt("files__other")

    assert error.value.code == INVALID_PARAMS


async def test_replicas_have_their_prompts_once_and_a_resource_is_read_from_the_one_that_listed_it() -> None:
    catalogue = with_toolset(replicated(["a", "b"], make_tool("any", "open")), "a", "b")
    targets: dict[str, Target] = {"a": HttpTarget("http://127.0.0.1:1/mcp"), "b": library_stdio("b")}
    async with serving(catalogue, targets) as (client, _):
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        got = [(await client.get_prompt(f"{server}__greet")).description for server in ("a", "b")]
        (shelf,) = (one for one in (await client.list_resources()).resources if one.name == "shelf")
        text = text_of(await client.read_resource(shelf.uri))

    assert prompts == {"a__greet", direct_name("a", ODD)}
    assert got == ["by b", "by b"]
    assert text == "shelf://one/book 1 of b"


def with_ui(tool: IndexedTool) -> IndexedTool:
    declared = {**tool.definition.as_object(), "_meta": {"ui": {"resourceUri": UI, "visibility": ["model"]}}}
    return replace(tool, definition=ToolDefinition.from_wire(json.dumps(declared)))


@both_eras
async def test_the_user_interface_of_a_tool_is_read_from_its_own_server_by_who_may_call_the_tool(mode: str) -> None:
    catalogue = with_toolset(catalogue_of([with_ui(OPEN), with_ui(MAIL)]), "files", "mail")
    rules: list[Rule] = []
    catalogue = replace(catalogue, read_policy=lambda: Policy(rules=tuple(rules)))
    targets = {"files": library_stdio("files"), "mail": library_stdio("mail")}
    async with serving(catalogue, targets, ANN, Caller("bob"), mode=mode) as (ann, bob):
        tools = {tool.name: tool.meta or {} for tool in (await ann.list_tools()).tools}
        uris = {name: tools[name]["ui"]["resourceUri"] for name in ("files__open", "mail__open")}
        texts = {name: text_of(await ann.read_resource(uri)) for name, uri in uris.items()}
        outside = {await error_of_read(bob, uri) for uri in (*uris.values(), UI)}
        rules.append(Rule(servers=("files",), action="deny"))
        denied = await error_of_read(ann, uris["files__open"])

    assert texts == {"files__open": f"{UI} of files", "mail__open": f"{UI} of mail"}
    assert all(uri.startswith("ui://") for uri in uris.values())
    assert tools["files__open"]["ui"]["visibility"] == ["model"]
    assert outside == {UNKNOWN}
    assert UNKNOWN in denied


async def test_a_prompt_and_a_completion_are_logged_and_recorded_without_their_content(tmp_path: Path) -> None:
    usage = SqliteUsage(tmp_path / "savings.sqlite3", 30)
    with recorded(with_toolset(catalogue_of([OPEN]), "files"), usage) as catalogue:
        async with serving(catalogue, {"files": library_stdio("files")}) as (client, _):
            with structlog.testing.capture_logs() as logs:
                await client.get_prompt("files__greet", {"city": "s3cret"})
                await client.complete(PromptReference(name="files__greet"), {"name": "city", "value": "s3cret"})
    rows = usage.rows(today(), today())
    usage.close()

    called = [entry for entry in logs if entry["event"] == "tool_called"]
    assert [(entry["tool"], entry["server"], entry["outcome"]) for entry in called] == [
        ("prompts/get", "files", "ok"),
        ("completion/complete", "files", "ok"),
    ]
    assert "s3cret" not in str(logs)
    assert rows[RowKey(today(), "ann", "files", "prompts/get")]["bytes"] > 0
    assert rows[RowKey(today(), "ann", "", "prompts/get")]["answers"] == 1
