"""A session with a server belongs to one caller, outlives its connection, and is replaced once the server lost it."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.types import CallToolResult, ListToolsResult

from query.caller import Caller, operator
from query.calling import session_bounds, session_tools
from query.calling.limits import CallLimits
from query.calling.upstreams import Upstreams
from query.catalogue import Catalogue
from query.kept import Kept, RedisEntries
from query.mcp import build_server
from query.tools.registry import builtin_tools
from shared.catalog import FEATURES_VERSION
from shared.errors import CursorsUnavailable
from shared.intents.definitions import Definitions
from shared.intents.intents import open_intents
from shared.service.redis import connect
from shared.settings import load_settings
from shared.upstream.dial import Dialler
from shared.upstream.options import ServerOptions
from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.calling import PATIENT, catalogue_of, options_of, replicated, text_of, tool_of
from tests.support.hostile.messages import failure, initialized, result
from tests.support.hostile.processes import good_http
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.http_callers import app_of, mcp_client
from tests.support.policies import always, policy, rule
from tests.support.redis_server import redis_server

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HANDSHAKE = "2025-11-25"
PROGRAM = Path(__file__).parents[1] / "support" / "hostile" / "session_server.py"
TOOLS = [tool_of("s", name) for name in ("remember", "recall", "enable", "where", "asks")]
READ, WRITE = tool_of("s", "read", "readOnlyHint"), tool_of("s", "write")
STDIO = StdioTarget(sys.executable, (str(PROGRAM), "stdio"))

Answer = Callable[[Exchange], None]


class Service:
    """Upstreams of one process, and clients of its callers."""

    def __init__(
        self,
        target: Target,
        limits: CallLimits = PATIENT,
        kept: Kept | None = None,
        *,
        is_stateful: bool = False,
        has_replicas: bool = False,
        catalogue: Catalogue | None = None,
    ) -> None:
        self.targets: dict[str, Target] = {"s": target}
        self.changed: list[str] = []
        options = ServerOptions(is_stateful=is_stateful)
        dialler = Dialler(self.targets, frozenset(), None, {}, read_options=lambda _, __: options)
        self.upstreams = Upstreams(
            dialler.target,
            limits,
            dialler.authenticated,
            kept,
            on_tools_changed=self.changed.append,
            has_replicas=has_replicas,
        )
        self.catalogue = catalogue or catalogue_of([*TOOLS, READ, WRITE], HANDSHAKE)

    def client(self, caller: Caller) -> Client:
        handlers = builtin_tools(self.catalogue, self.upstreams)
        return Client(build_server(handlers, always(caller), upstreams=self.upstreams))


@asynccontextmanager
async def callers(service: Service, *names: str | Caller) -> AsyncGenerator[list[Client]]:
    async with AsyncExitStack() as stack:
        known = [name if isinstance(name, Caller) else Caller(name) for name in names]
        yield [await stack.enter_async_context(service.client(caller)) for caller in known]


async def call(client: Client, tool: str, **parameters: object) -> CallToolResult:
    return await client.call_tool("call_tool", {"tool_name": f"s:{tool}", "parameters": parameters})


async def words_of(client: Client, tool: str = "recall", **parameters: object) -> tuple[str, str]:
    """Return the session that a call used, and the words that it remembers."""
    called = await call(client, tool, **parameters)
    assert not called.is_error, text_of(called)
    session, _, words = text_of(called).partition(": ")
    return session, words


@contextmanager
def session_target(kind: str) -> Generator[Target]:
    if kind == "stdio":
        yield STDIO
        return
    with good_http(kind.partition(" ")[0], program="session") as target:
        yield replace(target, transport="streamable-http") if kind == "sse without a type" else target


# Whose session it is


@pytest.mark.parametrize("kind", ["legacy", "sse", "sse without a type", "stdio"])
async def test_two_callers_do_not_share_the_session_of_a_server_that_keeps_state(kind: str) -> None:
    with session_target(kind) as target:
        service = Service(target, is_stateful=True)
        async with callers(service, "ann", "bob") as (ann, bob):
            async with anyio.create_task_group() as tasks:  # at once, while nothing is known about the server
                tasks.start_soon(partial(words_of, ann, "remember", word="ann's"))
                tasks.start_soon(partial(words_of, bob, "remember", word="bob's"))
            (anns_session, anns), (bobs_session, bobs) = await words_of(ann), await words_of(bob)

    assert (anns, bobs) == ("ann's", "bob's")
    assert anns_session != bobs_session


async def test_callers_share_the_process_of_a_stdio_server_that_is_not_declared_stateful() -> None:
    async with callers(Service(STDIO), "ann", "bob") as (ann, bob):
        assert await words_of(ann) == await words_of(bob)


@pytest.mark.parametrize("protocol_version", [HANDSHAKE, None])
async def test_callers_share_the_connection_to_a_server_that_assigns_no_session(protocol_version: str | None) -> None:
    with scripted_http(SessionServer(assigns=False)) as server:
        catalogue = catalogue_of([READ], protocol_version)
        async with callers(Service(HttpTarget(server.url), catalogue=catalogue), "ann", "bob") as (ann, bob):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, ann, "read")
                tasks.start_soon(call, bob, "read")
            await call(bob, "read")

    assert server.methods.count("initialize") == 1


@pytest.mark.parametrize("assigns", [True, False])
async def test_a_cookie_of_one_caller_is_sent_with_the_requests_of_no_other(assigns: bool) -> None:
    script = SessionServer(assigns=assigns)
    script.answer = lambda exchange: exchange.send(
        200, json.dumps(result(exchange.request_json, {"content": []})).encode(), set_cookie="user=1; Path=/"
    )
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann", "bob") as (ann, bob):
            for client in (ann, bob, ann):
                await call(client, "read")
        sent = [each.headers.get("cookie") for each in server.seen if each.method == "tools/call"]

    assert sent == [None, None, "user=1" if assigns else None]


async def test_a_session_has_one_connection() -> None:
    script = SessionServer()
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            for _ in range(3):
                await call(ann, "read")
            await until(lambda: "GET" in server.methods)

    assert server.methods.count("notifications/initialized") == 1
    assert server.methods.count("GET") == 1, "each connection asks for the server's own messages"


async def test_a_server_that_begins_to_assign_sessions_has_one_for_each_caller() -> None:
    script = SessionServer(assigns=False)
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann", "bob") as (ann, bob):
            await call(ann, "read")
            script.assigns = True  # each request without a session is refused from now on
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, ann, "read")
                tasks.start_soon(call, bob, "read")
            used = {name: len(script.calls) for name in script.sessions}

    assert len(used) == 2


async def test_without_tokens_each_client_has_a_session_of_its_own() -> None:
    with session_target("legacy") as target:
        async with callers(Service(target), operator(client="one"), operator(client="other")) as (one, other):
            first, second = await words_of(one), await words_of(other)

    assert first != second


async def test_clients_over_http_without_tokens_are_told_apart_by_their_addresses() -> None:
    with session_target("legacy") as target:
        service = Service(target)
        app = app_of(service.catalogue.index, upstreams=service.upstreams)
        sessions: list[str] = []
        async with app.router.lifespan_context(app):
            for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
                transport = httpx2.ASGITransport(app, client=(address, 1))
                async with (
                    httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
                    mcp_client(http) as client,
                ):
                    sessions.append((await words_of(client))[0])

    assert sessions[0] == sessions[2] != sessions[1]


# A process of a project


def in_directory(directory: Path, client: str = "one") -> Caller:
    directory.mkdir(exist_ok=True)
    return operator(client=client, directory=str(directory))


@pytest.mark.parametrize(
    ("target", "where"),
    [
        (replace(STDIO, cwd="."), "."),
        (replace(STDIO, cwd="sub"), "sub"),
        (replace(STDIO, cwd="${workspaceFolder}/sub"), "sub"),
        (replace(STDIO, args=(*STDIO.args, "${workspaceFolder}")), "."),
        (replace(STDIO, args=(*STDIO.args, "./file")), "."),
    ],
)
async def test_a_server_of_the_project_has_a_process_for_each_directory(
    target: StdioTarget, where: str, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    people = [in_directory(here), in_directory(here, "another"), in_directory(there)]
    for directory in (here, there):
        (directory / "sub").mkdir()
    async with callers(Service(target), *people) as (one, another, elsewhere):
        assert (await words_of(one, "where"))[0] == str((here / where).resolve())
        assert (await words_of(elsewhere, "where"))[0] == str((there / where).resolve())
        assert await words_of(one) == await words_of(another)


async def test_a_server_that_asks_for_roots_has_a_process_for_each_directory_from_then_on(tmp_path: Path) -> None:
    people = [in_directory(tmp_path / "here"), in_directory(tmp_path / "there")]
    async with callers(Service(STDIO), *people) as (here, there):
        begun = await words_of(here)
        assert await words_of(there) == begun
        await words_of(here, "asks")
        assert await words_of(here) == begun
        assert await words_of(there) != begun


# Any replica continues it


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


def replica(
    target: Target, redis_url: str, limits: CallLimits = PATIENT, catalogue: Catalogue | None = None
) -> Service:
    """Return a service as another process has it: it shares Redis with others, and nothing else."""
    kept = Kept(RedisEntries(connect(redis_url, decode=False)))
    return Service(target, limits, kept, has_replicas=True, catalogue=catalogue)


async def test_another_replica_continues_the_session_of_the_caller_and_of_no_other(redis_url: str) -> None:
    with session_target("legacy") as target:
        one, other = replica(target, redis_url), replica(target, redis_url)
        async with callers(one, "ann") as (before,), callers(other, "ann", "bob") as (ann, bob):
            begun = await words_of(before, "remember", word="first")
            continued = await words_of(ann, "remember", word="second")
            bobs_session, bobs = await words_of(bob)
            again = await words_of(before)

    assert continued == (begun[0], "first second")
    assert again == continued
    assert bobs_session != begun[0]
    assert bobs == ""


async def test_another_replica_uses_the_server_that_has_the_session_of_the_caller(redis_url: str) -> None:
    with ExitStack() as stack:
        names = [f"r{number}" for number in range(5)]
        targets = {name: stack.enter_context(session_target("legacy")) for name in names}
        catalogue = replicated(targets, tool_of("r0", "recall"), protocol_version=HANDSHAKE)
        services = [replica(HttpTarget("http://127.0.0.1:9"), redis_url, catalogue=catalogue) for _ in range(3)]
        sessions: set[str] = set()
        for service in services:
            service.targets.update(targets)
            async with callers(service, "ann") as (ann,):
                sessions.add(text_of(await ann.call_tool("call_tool", {"tool_name": "recall", "parameters": {}})))

    assert len(sessions) == 1


async def test_two_replicas_never_use_the_same_id_for_two_requests_of_a_session(redis_url: str) -> None:
    script = SessionServer()
    with scripted_http(script) as server:
        one, other = (replica(HttpTarget(server.url), redis_url) for _ in range(2))
        async with callers(one, "ann") as (before,), callers(other, "ann") as (after,):
            for _ in range(3):
                await call(before, "read")
                await call(after, "read")
    ids = [exchange.request_json["id"] for exchange in server.seen if "id" in exchange.request_json]

    assert server.methods.count("initialize") == 1
    assert len(set(ids)) == len(ids)


async def test_an_idle_replica_leaves_the_session_to_the_one_that_used_it_later_and_that_ends_it(
    redis_url: str,
) -> None:
    script = SessionServer()
    brief = CallLimits(timeout_s=30, idle_s=0.2)
    with scripted_http(script) as server:
        one, other = (replica(HttpTarget(server.url), redis_url, limits) for limits in (brief, PATIENT))
        async with callers(one, "ann") as (before,), callers(other, "ann") as (after,):
            await call(before, "read")
            await call(after, "read")
            await until(lambda: not one.upstreams.has_connections)
            assert "DELETE" not in server.methods
            await call(after, "read")
        last = replica(HttpTarget(server.url), redis_url, brief)
        async with callers(last, "ann") as (ann,):
            await call(ann, "read")
            await until(lambda: "DELETE" in server.methods)
            await call(ann, "read")

    assert server.methods.count("initialize") == 2, "the session that was ended is not continued"


async def test_a_replica_that_cannot_read_who_used_the_session_later_does_not_end_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SessionServer()
    brief = CallLimits(timeout_s=30, idle_s=0.2)
    with scripted_http(script) as server:
        one, other = (replica(HttpTarget(server.url), redis_url, limits) for limits in (brief, PATIENT))
        async with callers(one, "ann") as (before,), callers(other, "ann") as (after,):
            await call(before, "read")
            await call(after, "read")
            with monkeypatch.context() as silent:
                silent.setattr(RedisEntries, "get", _fails)
                await until(lambda: not one.upstreams.has_connections)
            await call(after, "read")
            assert "DELETE" not in server.methods

    assert server.methods.count("initialize") == 1


def _fails(*_: object) -> None:
    raise CursorsUnavailable("Redis does not answer")


async def test_a_session_goes_on_after_its_connection_made_room_for_another() -> None:
    one_at_a_time = CallLimits(timeout_s=30, max_connections=1)
    with session_target("legacy") as target:
        async with callers(Service(target, one_at_a_time), "ann", "bob") as (ann, bob):
            begun = await words_of(ann, "remember", word="first")
            await words_of(bob)
            assert await words_of(ann, "remember", word="second") == (begun[0], "first second")


async def test_services_with_several_replicas_refuse_a_stateful_process_and_say_why() -> None:
    async with callers(Service(STDIO, is_stateful=True, has_replicas=True), "ann") as (ann,):
        refused = await call(ann, "recall")

    assert refused.is_error
    assert "no other replica" in text_of(refused)


# It was lost


class SessionServer:
    """A scripted server that knows its sessions, and refuses requests in others as `refuse` does."""

    def __init__(self, refuse: Answer = lambda exchange: exchange.send(404), *, assigns: bool = True) -> None:
        self.refuse = refuse
        self.assigns = assigns
        self.sessions: set[str] = set()
        self.calls: list[str] = []
        self.answer: Answer = lambda exchange: exchange.send_json(
            result(exchange.request_json, {"content": [{"type": "text", "text": "done"}]})
        )

    def __call__(self, exchange: Exchange) -> None:
        session = exchange.headers.get("mcp-session-id")
        if exchange.method == "GET":
            exchange.send(405)
        elif exchange.method == "server/discover":
            exchange.send(404)
        elif exchange.method == "initialize":
            self._initialize(exchange)
        elif self.assigns and session not in self.sessions:
            self.refuse(exchange)
        elif exchange.method == "DELETE":
            self.sessions.discard(session or "")
            exchange.send(200)
        elif "id" not in exchange.request_json:
            exchange.send(202)
        elif exchange.method == "tools/call":
            self.calls.append(str(exchange.request_json["params"]["name"]))
            self.answer(exchange)
        else:
            exchange.send_json(result(exchange.request_json, {}))

    def _initialize(self, exchange: Exchange) -> None:
        name = uuid.uuid4().hex
        body = json.dumps(initialized(exchange.request_json)).encode()
        if self.assigns:
            self.sessions.add(name)
            exchange.send(200, body, mcp_session_id=name)
        else:
            exchange.send(200, body)


def refuses(status: int, words: str, *, with_id: bool = True) -> Answer:
    def refuse(exchange: Exchange) -> None:
        error = failure({"id": exchange.request_json.get("id") if with_id else None}, -32001, words)
        exchange.send(status, json.dumps(error).encode())

    return refuse


REFUSED: dict[str, Answer] = {
    "404": refuses(404, "Session not found"),
    "400": refuses(400, "Bad Request: No valid session ID provided"),
    "400 of the TypeScript SDK": refuses(400, "Bad Request: Server not initialized", with_id=False),
    "400 in plain text": lambda exchange: exchange.send(400, b"Invalid or missing session ID", "text/plain"),
    "400 without words": lambda exchange: exchange.send(400),
    "401": refuses(401, "Unauthorized: session expired"),
    "401 without words": lambda exchange: exchange.send(401),
    "410": refuses(410, "this session is gone"),
}
UNCERTAIN: dict[str, Answer] = {
    "503 without words": lambda exchange: exchange.send(503),
    "503": refuses(503, "Service Unavailable: unknown session"),
    "503 of another form": lambda exchange: exchange.send(503, b'{"error": "session not found"}'),
    "200": refuses(200, "Session not found or expired"),
    "200 without an id": refuses(200, "Session not found or expired", with_id=False),
}


@pytest.mark.parametrize("refuse", REFUSED.values(), ids=REFUSED.keys())
async def test_a_call_after_the_loss_of_its_session_opens_another_and_reaches_the_server_once(refuse: Answer) -> None:
    script = SessionServer(refuse)
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            assert text_of(await call(ann, "write")) == "done"
            script.sessions.clear()
            script.calls.clear()
            assert text_of(await call(ann, "write")) == "done"

    assert script.calls == ["write"]
    assert server.methods.count("initialize") == 2


@pytest.mark.parametrize(("tool", "is_repeated"), [("read", True), ("write", False)])
@pytest.mark.parametrize("refuse", UNCERTAIN.values(), ids=UNCERTAIN.keys())
async def test_a_call_that_may_have_run_is_repeated_only_if_that_does_no_harm(
    refuse: Answer, tool: str, is_repeated: bool
) -> None:
    script = SessionServer(refuse)

    def run_and_lose(exchange: Exchange) -> None:
        script.sessions.clear()
        script.answer = SessionServer().answer
        refuse(exchange)

    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            await call(ann, tool)
            script.answer = run_and_lose
            script.calls.clear()
            second = await call(ann, tool)
            assert len(script.calls) == 1 + is_repeated
            third = await call(ann, tool)

    assert second.is_error is not is_repeated
    assert text_of(third) == "done"
    assert server.methods.count("initialize") == 2


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_an_error_of_a_tool_that_names_a_session_ends_none(status: int) -> None:
    script = SessionServer()
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            await call(ann, "write")
            script.answer = refuses(status, "browser session 7 not found")
            refused = await call(ann, "write")

    assert "browser session 7 not found" in text_of(refused)
    assert script.calls == ["write", "write"]
    assert server.methods.count("initialize") == 1


async def test_a_request_for_other_credentials_is_not_taken_for_a_lost_session() -> None:
    script = SessionServer(lambda exchange: exchange.send(401, www_authenticate='Basic realm="other"'))
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            await call(ann, "read")
            script.sessions.clear()
            refused = await call(ann, "read")

    assert "credentials" in text_of(refused)
    assert server.methods.count("initialize") == 1


async def test_a_session_that_is_lost_twice_is_opened_once_more_for_a_call() -> None:
    script = SessionServer()
    with scripted_http(script) as server:
        async with callers(Service(HttpTarget(server.url)), "ann") as (ann,):
            await call(ann, "read")
            script.answer = lambda exchange: exchange.send(404)
            assert (await call(ann, "read")).is_error

    assert script.calls == ["read"] * 3
    assert server.methods.count("initialize") == 2


# Bounds


@pytest.mark.parametrize(
    ("bound", "kind"),
    [("MOST_OF_SERVER", "legacy"), ("MOST_SESSIONS", "legacy"), ("MOST_PROCESSES_OF_SERVER", "stdio")],
)
async def test_a_session_beyond_the_bound_is_an_error_that_says_so(
    bound: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_bounds, bound, 1)
    with session_target(kind) as target:
        async with callers(Service(target, is_stateful=True), "ann", "bob", "eve") as (ann, bob, eve):
            kept = await words_of(ann, "remember", word="mine")
            refused = [await call(other, "recall") for other in (bob, eve)]
            assert await words_of(ann) == kept

    assert all("as many as may" in text_of(each) for each in refused[kind == "legacy" :])


async def test_an_idle_session_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_bounds, "MOST_PROCESSES_OF_SERVER", 1)
    service = Service(STDIO, CallLimits(timeout_s=30, idle_s=0.2), is_stateful=True)
    async with callers(service, "ann", "bob") as (ann, bob):
        await words_of(ann)
        await until(lambda: not service.upstreams.has_connections)
        await words_of(bob)


# Its tools change


@pytest.mark.parametrize("kind", ["legacy", "stdio"])
async def test_a_session_whose_tools_change_requests_a_reconciliation(kind: str) -> None:
    with session_target(kind) as target:
        service = Service(target)
        async with callers(service, "ann") as (ann,):
            await words_of(ann, "enable")
            await until(lambda: service.changed == ["s"])


@pytest.fixture
def catalogue(tmp_path: Path) -> Generator[Catalogue]:
    with closing(open_intents(load_settings(data_dir=tmp_path))) as intents:
        intents.update_definitions("s", lambda _: Definitions(server_id="s"))
        catalogue = catalogue_of([*TOOLS, READ, WRITE], HANDSHAKE)
        for record in catalogue.index.servers():
            listed = {"last_listed_at": 1.0, "features_version": FEATURES_VERSION, "revision": record.revision + 100}
            catalogue.index.put_server(record.model_copy(update=listed))
        yield replace(catalogue, intents=intents)


@asynccontextmanager
async def enabled(catalogue: Catalogue, kind: str = "legacy") -> AsyncGenerator[list[Client]]:
    """Yield ann, in whose session the tool `hidden` was enabled, and bob, who has a session too."""
    with session_target(kind) as target:
        service = Service(target, catalogue=catalogue)
        async with callers(service, "ann", "bob") as (ann, bob):
            await words_of(bob)
            assert (await call(ann, "hidden")).is_error
            await words_of(ann, "enable")
            await until(lambda: service.changed == ["s"])
            yield [ann, bob]


@pytest.mark.parametrize("kind", ["legacy", "stdio"])
async def test_a_tool_that_appears_in_a_session_can_be_called_there(catalogue: Catalogue, kind: str) -> None:
    async with enabled(catalogue, kind) as (ann, bob):
        session, _ = await words_of(ann, "hidden")
        refused = await call(bob, "hidden")

    assert session
    assert refused.is_error is (kind == "legacy"), "callers share a process that is not declared stateful"


async def test_the_tools_of_sessions_have_a_bound_and_are_listed_again_where_they_were_dropped(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = 0
    list_tools = Client.list_tools

    async def counted(client: Client, **more: Any) -> ListToolsResult:
        nonlocal listed
        listed += 1
        return await list_tools(client, **more)

    monkeypatch.setattr(Client, "list_tools", counted)
    with session_target("legacy") as target:
        async with callers(Service(target, catalogue=catalogue), "ann", "bob") as both:
            for client in both:
                await words_of(client, "enable")
            for client in (*both, *both):
                await words_of(client, "hidden")
            assert listed == 2
            monkeypatch.setattr(session_tools, "MOST_BYTES", 1_000)  # a list has some 500
            monkeypatch.setattr(session_tools, "SESSIONS_SHARE", 1)
            for client in both:
                await words_of(client, "enable")
            for client in (*both, *both):
                await words_of(client, "hidden")
            assert listed == 6
            monkeypatch.setattr(session_tools, "SESSIONS_SHARE", 4)
            await words_of(both[0], "enable")
            refused = await call(both[0], "hidden")

    assert refused.is_error
    assert "too large" in text_of(refused)


async def test_the_schema_of_a_tool_of_a_session_is_checked(catalogue: Catalogue) -> None:
    async with enabled(catalogue) as (ann, _):
        refused = await call(ann, "hidden", number="one")

    assert "number" in text_of(refused)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"read_options": options_of({"s": ServerOptions(exclude_tools=("hid*",))})}, "exclude"),
        ({"read_policy": lambda: policy(rule(tools=["hidden"]))}, "There is no tool"),
        ({"intents": None}, "There is no tool"),
    ],
)
async def test_the_operator_decides_on_a_tool_of_a_session_as_on_any_other(
    catalogue: Catalogue, changes: dict[str, Any], reason: str
) -> None:
    async with enabled(replace(catalogue, **changes)) as (ann, _):
        refused = await call(ann, "hidden")

    assert refused.is_error
    assert reason in text_of(refused)


async def test_a_tool_of_a_session_waits_for_its_approval_where_changes_do(catalogue: Catalogue) -> None:
    assert catalogue.intents
    catalogue.intents.update_definitions("s", lambda _: Definitions(server_id="s", held=True))
    async with enabled(catalogue) as (ann, _):
        assert "There is no tool" in text_of(await call(ann, "hidden"))


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await anyio.sleep(0.01)
