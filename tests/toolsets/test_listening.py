"""Clients that listen are notified when the tools of their toolset change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import Subscription
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from typing_extensions import override

from query import listening
from query.caller import Caller
from query.catalogue import Catalogue
from query.listener import open_listener
from query.mcp import TOOLSET_TTL_MS, caller_of_request, service_of
from query.policy import Policy, Rule
from query.records import Ledger
from query.service import HttpServer
from shared.catalog import Endpoint, IndexedTool, ServerRecord
from shared.settings import load_settings
from shared.toolset import Toolset
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool

pytestmark = pytest.mark.anyio

EMBEDDER = FakeEmbedder()
ANN, BOB = Caller("ann", toolset="dev"), Caller("bob", toolset="other")


@dataclass
class Site:
    """An index of the servers `git` and `time`, whose toolset `dev` has `git`, and services over it.

    `looks` counts the reads of toolsets.
    """

    index: FakeIndex = field(default_factory=lambda: CountingIndex())
    rules: list[Rule] = field(default_factory=list[Rule])

    def __post_init__(self) -> None:
        self.offer("git", "log")
        self.offer("time", "now")
        self.index.put_toolset(Toolset(name="dev", tools=("git",)))
        self.index.put_toolset(Toolset(name="other", tools=("time",)))

    def offer(self, server_id: str, *names: str) -> None:
        """Make these the tools of the server, as a reconciliation of any process does."""
        tools: list[IndexedTool] = [make_tool(server_id, name) for name in names]
        self.index.delete(server_id, self.index.tool_states(server_id))
        self.index.upsert([ingested(tool, EMBEDDER) for tool in tools])
        revision = 1 + max((record.revision for record in self.index.servers()), default=0)
        record = ServerRecord(server_id=server_id, endpoint=Endpoint(), revision=revision, tool_count=len(tools))
        self.index.put_server(record)

    def catalogue(self) -> Catalogue:
        """Return the catalogue of one more process."""
        return Catalogue(self.index, EMBEDDER, Ledger(self.index), read_policy=lambda: Policy(rules=tuple(self.rules)))

    def client(self, caller: Caller = ANN) -> Client:
        """Return a client of one more process."""
        return Client(service_of(self.catalogue(), upstreams_to({}), lambda _: caller), cache=None)


class CountingIndex(FakeIndex):
    """Counts the reads of toolsets."""

    looks = 0

    @override
    def toolset(self, name: str) -> Toolset | None:
        self.looks += 1
        return super().toolset(name)


@pytest.fixture(autouse=True)
def _often() -> Generator[None]:
    with patch.object(listening, "POLL_S", 0.02):
        yield


async def looked_again(index: FakeIndex, times: int = 3) -> None:
    """Return after some more reads of toolsets."""
    assert isinstance(index, CountingIndex)
    before = index.looks
    with anyio.fail_after(60):
        while index.looks < before + times:  # noqa: ASYNC110  # a thread counts them
            await anyio.sleep(0.01)


async def next_event(subscription: Subscription) -> object:
    with anyio.fail_after(60):
        return await anext(aiter(subscription))


async def collect(subscription: Subscription, events: list[object]) -> None:
    async for event in subscription:
        events.append(event)  # noqa: PERF401  # a test reads them meanwhile


CHANGES: dict[str, Callable[[Site], object]] = {
    "a server has another tool": lambda site: site.offer("git", "log", "diff"),
    "a server lost its tools": lambda site: site.offer("git"),
    "the toolset has another server": lambda site: site.index.put_toolset(Toolset(name="dev", tools=("git", "time"))),
    "the toolset is gone": lambda site: site.index.delete_toolset("dev"),
    "the policy denies a tool": lambda site: site.rules.append(Rule(servers=("git",), action="deny")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_every_process_notifies_of_a_change_of_the_tools_that_the_client_lists(
    change: Callable[[Site], object],
) -> None:
    site = Site()
    async with site.client() as first, site.client() as second, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(each.listen(tools_list_changed=True)) for each in (first, second, first)
        ]
        before = [tool.name for tool in (await first.list_tools()).tools]
        change(site)
        events = [await next_event(stream) for stream in streams]
        after = [tool.name for tool in (await first.list_tools()).tools]

    assert events == [ToolsListChanged()] * 3
    assert before != after


async def test_changes_of_other_tools_are_no_news() -> None:
    site = Site()
    events: list[object] = []
    async with (
        site.client() as client,
        client.listen(tools_list_changed=True) as stream,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(collect, stream, events)
        site.offer("time", "now", "zones")
        site.index.put_toolset(Toolset(name="dev", tools=("git",), description="the same tools"))
        await looked_again(site.index, times=5)
        assert not events
        site.offer("git", "log", "diff")
        await looked_again(site.index, times=5)
        tasks.cancel_scope.cancel()

    assert events == [ToolsListChanged()]


async def test_only_what_is_seen_is_promised() -> None:
    async with Site().client() as client:
        capabilities = client.server_capabilities
        async with client.listen(
            tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
        ) as stream:
            honored = stream.honored

    assert (honored.tools_list_changed, honored.prompts_list_changed, honored.resources_list_changed) == (
        True,
        None,
        None,
    )
    assert capabilities.tools
    assert capabilities.tools.list_changed
    assert capabilities.prompts
    assert not capabilities.prompts.list_changed
    assert capabilities.resources
    assert not capabilities.resources.list_changed
    assert not capabilities.resources.subscribe


async def test_nothing_is_read_without_a_listener_or_for_a_caller_without_a_toolset() -> None:
    site = Site()
    assert isinstance(site.index, CountingIndex)
    async with site.client() as client, site.client(Caller("eve")) as without:
        async with client.listen(tools_list_changed=True):
            await looked_again(site.index)
        async with without.listen(tools_list_changed=True):
            with anyio.fail_after(60):
                quiet = -1
                while quiet != site.index.looks:  # a look may be under way
                    quiet = site.index.looks
                    await anyio.sleep(0.2)


async def test_an_index_that_does_not_answer_for_a_while_hides_no_change() -> None:
    site = Site()
    async with site.client() as client, client.listen(tools_list_changed=True) as stream:
        site.index.is_down = True
        await looked_again(site.index)
        with pytest.raises(MCPError):
            async with client.listen(tools_list_changed=True):
                pass
        site.index.is_down = False
        site.offer("git", "log", "diff")
        assert await next_event(stream) == ToolsListChanged()


async def test_a_caller_listens_a_limited_number_of_times_and_others_still_may() -> None:
    site = Site()
    with patch.object(listening, "MOST_OF_CALLER", 2):
        service = service_of(site.catalogue(), upstreams_to({}), lambda _: current[0])
        current = [ANN]
        async with Client(service) as client, AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(client.listen(tools_list_changed=True))
            with pytest.raises(MCPError, match="ann listens 2 times"):
                async with client.listen(tools_list_changed=True):
                    pass
            current[0] = BOB
            async with client.listen(tools_list_changed=True):
                pass
            current[0] = replace(ANN, toolset=None)
            with pytest.raises(MCPError, match="ann listens 2 times"):
                async with client.listen(tools_list_changed=True):
                    pass
            await stack.aclose()
            current[0] = ANN
            async with client.listen(tools_list_changed=True):
                pass


async def test_a_toolset_s_list_may_be_kept_for_seconds_and_our_own_for_minutes() -> None:
    site = Site()
    async with site.client() as client, site.client(Caller("eve")) as without:
        of_toolset, ours = await client.list_tools(), await without.list_tools()

    assert (of_toolset.ttl_ms, of_toolset.cache_scope) == (TOOLSET_TTL_MS, "private")
    assert ours.ttl_ms > of_toolset.ttl_ms
    assert ours.cache_scope == "private"


# --- over HTTP ---


@contextmanager
def over_http(site: Site, directory: Path) -> Generator[tuple[str, HttpServer, threading.Thread]]:
    """Run the service in a thread; yield its address, the server and the thread."""
    with closing(open_listener(load_settings(data_dir=directory, port=0))) as listener:
        server = HttpServer(
            service_of(site.catalogue(), upstreams_to({}), caller_of_request),
            listener,
            index=site.index,
            grace_s=60,
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield listener.address, server, thread
        finally:
            server.stop()
            thread.join()


async def test_over_http_a_change_is_told_and_the_end_of_the_service_ends_the_stream_at_once(tmp_path: Path) -> None:
    site = Site()
    with over_http(site, tmp_path) as (address, server, thread):
        async with (
            Client(f"{address}/mcp/dev", cache=None) as client,
            client.listen(tools_list_changed=True) as stream,
        ):
            site.offer("git", "log", "diff")
            told = await next_event(stream)
            server.stop()
            with anyio.fail_after(30), pytest.raises(StopAsyncIteration):
                await anext(aiter(stream))
        await anyio.to_thread.run_sync(thread.join, 30)
        has_ended = not thread.is_alive()

    assert told == ToolsListChanged()
    assert has_ended


async def test_a_client_that_leaves_is_forgotten(tmp_path: Path) -> None:
    site = Site()
    with over_http(site, tmp_path) as (address, _, __), patch.object(listening, "MOST_OF_CALLER", 1):
        for _ in range(3):
            async with Client(f"{address}/mcp/dev") as client:
                with anyio.fail_after(60):
                    while True:
                        try:
                            async with client.listen(tools_list_changed=True):
                                break
                        except MCPError:  # the service has not seen yet that the last one left
                            await anyio.sleep(0.02)
