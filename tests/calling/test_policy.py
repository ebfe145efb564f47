"""The operator's policy on calls: denied ones reach no server, and asked ones only after a confirmation."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import pytest
import structlog
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitResult, InputRequiredResult, ReadResourceResult, ResourceLink, TextContent
from mcp_types import INVALID_PARAMS, ElicitRequestFormParams, ElicitRequestParams, InputResponses

from query.answers.budget import ResponsePolicy
from query.answers.links import UNKNOWN
from query.app import http_app
from query.auth.authentication import Authentication
from query.caller import Caller
from query.calling.limits import CallLimits
from query.catalogue import Catalogue
from query.kept import Kept, MemoryEntries
from query.listener import HttpListener
from query.mcp import caller_of_request, service_of
from query.policy import Policy
from query.tools.confirm import KEY
from shared.catalog import IndexedTool
from shared.errors import NO_SUCH_TOOL, ToolNotFound
from shared.toolset import Toolset
from tests.support.calling import catalogue_of, replicated, tool_of, upstreams_to
from tests.support.fakes import FakeEmbedder, ingested, make_tool
from tests.support.hostile.messages import result
from tests.support.hostile.scripted_http import Exchange
from tests.support.hostile.scripts import hangs_up
from tests.support.http_callers import entry, http_client, mcp_client, static
from tests.support.metrics import counted
from tests.support.policies import RecordingServers, always, policy, recording_servers, rule
from tests.support.replicated import put_server
from tests.support.silent_entries import SilentEntries
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
ERAS = ("legacy", MODERN)
both_eras = pytest.mark.parametrize("mode", ERAS)
ANN = Caller("ann")
DROP, READ = make_tool("db", "drop"), make_tool("db", "read", read_only=True)
ASK, DENY = rule("ask"), rule("deny")
Answer = Literal["accept", "decline", "cancel"]


@pytest.fixture
def servers() -> Iterator[RecordingServers]:
    with recording_servers(["db", "db1", "db2", "web"]) as running:
        yield running


class User:
    """The user of a client: gives the same answer to each question."""

    def __init__(self, answer: Answer = "accept") -> None:
        self.answer: Answer = answer
        self.questions: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.questions.append(params.message)
        return ElicitResult(action=self.answer, content={} if self.answer == "accept" else None)


def catalogue_with(rules: str, *tools: IndexedTool, policies: list[Policy] | None = None) -> Catalogue:
    """Return a catalogue under these rules, or under the last of the policies, which a test may extend."""
    known = policies or [policy(rules)]
    return replace(catalogue_of(tools or [DROP, READ], HANDSHAKE), read_policy=lambda: known[-1])


@asynccontextmanager
async def clients(
    catalogue: Catalogue, servers: RecordingServers, *callers: Caller, user: User | None = None, mode: str = MODERN
) -> AsyncGenerator[list[Client]]:
    """Yield a client for each caller."""
    upstreams = upstreams_to(servers.targets)
    async with AsyncExitStack() as stack:
        services = [service_of(catalogue, upstreams, always(caller)) for caller in callers]
        opened = [Client(service, mode=mode, elicitation_callback=user) for service in services]
        yield [await stack.enter_async_context(client) for client in opened]


@asynccontextmanager
async def client_of(
    catalogue: Catalogue, servers: RecordingServers, caller: Caller = ANN, user: User | None = None, mode: str = MODERN
) -> AsyncGenerator[Client]:
    async with clients(catalogue, servers, caller, user=user, mode=mode) as (client,):
        yield client


async def call(client: Client, name: str = "db:drop", **arguments: Any) -> CallToolResult:
    return await client.call_tool("call_tool", {"tool_name": name, "parameters": arguments})


def reason(result: CallToolResult) -> str:
    """Return the text of an error result."""
    assert result.is_error, result
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


# --- deny ---


@both_eras
async def test_a_denied_tool_seems_not_to_exist_and_only_the_log_names_the_policy(
    servers: RecordingServers, mode: str
) -> None:
    catalogue = catalogue_with(rule(annotations=["not_read_only"]))
    with structlog.testing.capture_logs() as lines, counted() as found:
        async with client_of(catalogue, servers, mode=mode) as client:
            denied = await call(client)
            allowed = await call(client, "read")

    assert reason(denied) == str(ToolNotFound("db:drop", NO_SUCH_TOOL, ("db:read",)))
    assert not allowed.is_error
    assert servers.received == [("db", "read")]
    logged = [line for line in lines if line["event"] == "tool_called"]
    assert [(line["caller"], line["server"], line["tool"], line["policy"], line["outcome"]) for line in logged] == [
        ("ann", "db", "drop", "deny", "CallDenied"),
        ("ann", "db", "read", "allow", "ok"),
    ]
    assert (found['toolscale_calls_total{outcome="refused"}'], found['toolscale_calls_total{outcome="ok"}']) == (1, 1)


async def test_a_denied_replica_gets_no_call_although_it_is_the_first(servers: RecordingServers) -> None:
    known = replicated(["db1", "db2"], make_tool("", "drop", read_only=True), protocol_version=HANDSHAKE, first="db1")
    catalogue = replace(known, read_policy=lambda: policy(rule(servers=["db1"])))
    (tool,) = catalogue.index.find_by_name("db2:drop", ANN.scope, 1)

    async with client_of(catalogue, servers) as client:
        for name in ("drop", tool.definition_name, "db2:drop"):
            assert not (await call(client, name)).is_error
        assert reason(await call(client, "db1:drop")) == str(ToolNotFound("db1:drop", NO_SUCH_TOOL, ("db2:drop",)))

    assert servers.received == [("db2", "drop")] * 3


async def test_failover_does_not_reach_a_denied_replica(servers: RecordingServers) -> None:
    servers.on_call = {"db2": hangs_up}
    known = replicated(["db1", "db2"], make_tool("", "drop", read_only=True), protocol_version=HANDSHAKE)
    catalogue = replace(known, read_policy=lambda: policy(rule(servers=["db1"])))

    async with client_of(catalogue, servers) as client:
        assert (await call(client, "drop")).is_error

    assert {server for server, _ in servers.received} == {"db2"}


async def test_the_cost_of_offered_tools_is_of_the_caller_and_of_the_rules_now(servers: RecordingServers) -> None:
    """`find_tool` counts neither the tools of `tools/list` as saved nor the denied ones."""
    policies = [policy(rule(callers=["ann"], tools=["drop"]))]
    catalogue = catalogue_with("", policies=policies)
    put_server(catalogue.index, "db", [DROP, READ])
    catalogue.index.put_toolset(Toolset(name="all", tools=("db",)))

    async def baseline(client: Client) -> int:
        found = await client.call_tool("find_tool", {"tool_description": "drop a table"})
        metrics: dict[str, Any] = dict(found.structured_content)["token_metrics"]
        return int(metrics["net_tokens_saved"] + metrics["answer_tokens"])

    one, two = Caller("ann", toolset="all"), Caller("bob", toolset="all")
    async with clients(catalogue, servers, one, two) as (ann, bob):
        assert [await baseline(bob), await baseline(ann)] == [0, 0]
        policies.append(policy(""))
        assert [await baseline(bob), await baseline(ann)] == [0, 0]


# --- resources of links ---


async def link_of(client: Client, name: str = "db:drop") -> str:
    result = await call(client, name)
    (uri,) = [block.uri for block in result.content if isinstance(block, ResourceLink)]
    return uri


@both_eras
async def test_a_link_is_read_only_while_its_tool_may_be_called(servers: RecordingServers, mode: str) -> None:
    policies = [policy("")]
    async with client_of(catalogue_with("", policies=policies), servers, mode=mode) as client:
        uri = await link_of(client)
        policies.append(policy(rule(tools=["drop"])))
        with pytest.raises(MCPError, match=re.escape(UNKNOWN)):
            await client.read_resource(uri)
        policies.append(policy(ASK))
        assert isinstance(await client.read_resource(uri), ReadResourceResult)

    assert servers.received == [("db", "drop"), ("db", "resources/read")]


# --- ask ---


async def test_a_confirmed_call_is_sent_once_and_its_question_shows_the_call(servers: RecordingServers) -> None:
    user, catalogue = User(), catalogue_with(rule("ask", tools=["drop"]))
    with structlog.testing.capture_logs() as lines:
        async with client_of(catalogue, servers, user=user) as client:
            result = await call(client, table="cüstomers")
            await call(client, "read")

    assert not result.is_error
    assert servers.received == [("db", "drop"), ("db", "read")]
    assert user.questions == ['Call the tool drop of the server db with these arguments? {"table": "cüstomers"}']
    logged = [(line["policy"], line["outcome"]) for line in lines if line["event"] == "tool_called"]
    assert logged == [("ask", "InputRequired"), ("ask", "ok"), ("allow", "ok")]


@pytest.mark.parametrize("answer", ["decline", "cancel"])
async def test_a_call_without_consent_is_not_sent(servers: RecordingServers, answer: Answer) -> None:
    async with client_of(catalogue_with(ASK), servers, user=User(answer)) as client:
        assert reason(await call(client)) == "db: the user did not confirm the call of drop, so it was not sent"

    assert servers.received == []


@both_eras
async def test_a_client_without_elicitation_gets_the_reason(servers: RecordingServers, mode: str) -> None:
    with counted() as found:
        async with client_of(catalogue_with(ASK), servers, mode=mode) as client:
            refused = reason(await call(client))

    assert refused.startswith(
        "db: calls of drop need the user's confirmation by the operator's policy, and this client"
    )
    assert servers.received == []
    assert found['toolscale_calls_total{outcome="refused"}'] == 1


async def test_invalid_arguments_are_refused_before_the_user_is_asked(servers: RecordingServers) -> None:
    user, tool = User(), tool_of("db", "drop", table={"type": "string"})
    async with client_of(catalogue_with(ASK, tool), servers, user=user) as client:
        assert "parameters.table: is required" in reason(await call(client))

    assert user.questions == []


@both_eras
async def test_over_http_only_the_newer_revision_can_ask(tmp_path: Path, servers: RecordingServers, mode: str) -> None:
    user, catalogue = User(), catalogue_with(ASK)
    app = http_of(catalogue, servers, static(tmp_path / "tokens.toml", ann=entry("good")))
    async with http_client(app, "good") as http, mcp_client(http, mode, user=user) as client:
        result = await call(client)

    assert (servers.received == [("db", "drop")]) == (mode == MODERN)
    if mode == "legacy":
        assert "HTTP with a revision of MCP before 2026-07-28" in reason(result)
    assert len(user.questions) == (mode == MODERN)


def http_of(catalogue: Catalogue, servers: RecordingServers, authentication: Authentication) -> Any:
    listener = HttpListener(socket.socket(), authentication)
    listener.close()
    server = service_of(catalogue, upstreams_to(servers.targets), caller_of_request)
    return http_app(server, listener, index=catalogue.index)


# --- confirmed calls that are not sent ---


async def test_a_confirmed_call_above_the_limit_of_its_caller_is_not_asked_about_again(
    servers: RecordingServers,
) -> None:
    user = User()
    upstreams = upstreams_to(servers.targets, CallLimits(per_caller=1))
    service = service_of(catalogue_with(ASK), upstreams, always(ANN))
    async with Client(service, mode=MODERN, elicitation_callback=user) as client:
        with upstreams.admission.admitted("ann"):
            refused = [await call(client, table="a"), await call(client, table="a")]
        assert len(user.questions) == 1
        retried = await call(client, table="a")
        assert len(user.questions) == 1
        await call(client, table="a")

    assert ["has 1 calls in flight" in reason(result) for result in refused] == [True, True]
    assert not retried.is_error
    assert len(user.questions) == 2, "a confirmation counts for one call"
    assert servers.received == [("db", "drop")] * 2


async def test_a_confirmation_of_a_call_without_a_free_connection_is_of_that_call_only(
    servers: RecordingServers,
) -> None:
    user, released = User(), threading.Event()
    servers.on_call = {"web": held_until(released)}
    catalogue = catalogue_with(rule("ask", servers=["db"]), DROP, READ, make_tool("web", "wait"))
    upstreams = upstreams_to(servers.targets, CallLimits(max_connections=1))
    services = [service_of(catalogue, upstreams, always(caller)) for caller in (ANN, Caller("bob"))]
    ann, bob = (Client(service, mode=MODERN, elicitation_callback=user) for service in services)
    async with ann, bob:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, bob, "web:wait")
            await anyio.to_thread.run_sync(eventually, lambda: servers.received)
            assert "all 1 connections" in reason(await call(ann, table="a"))
            released.set()
        for client, name, table in [(bob, "db:drop", "a"), (ann, "db:drop", "b"), (ann, "db:read", "a")]:
            await call(client, name, table=table)
        assert len(user.questions) == 4
        assert not (await call(ann, table="a")).is_error

    assert len(user.questions) == 4


async def test_a_call_that_a_replica_may_have_carried_out_does_not_give_its_confirmation_back(
    servers: RecordingServers,
) -> None:
    user, released = User(), threading.Event()

    def act(exchange: Exchange) -> None:
        hold(exchange) if exchange.request_json["params"]["name"] == "wait" else exchange.send(502)

    hold, servers.on_call = held_until(released), {"db1": act}
    tools = make_tool("", "read", read_only=True), make_tool("", "wait")
    known = replicated(["db1", "db2"], *tools, protocol_version=HANDSHAKE, first="db1")
    catalogue = replace(known, read_policy=lambda: policy(rule("ask", tools=["read"])))
    upstreams = upstreams_to(servers.targets, CallLimits(max_connections=1))
    service = service_of(catalogue, upstreams, always(ANN))
    async with Client(service, mode=MODERN, elicitation_callback=user) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, client, "db1:wait")
            await anyio.to_thread.run_sync(eventually, lambda: servers.received)
            assert "all 1 connections" in reason(await call(client, "read"))
            released.set()
        await call(client, "read")

    assert len(user.questions) == 2


@pytest.mark.parametrize(("later_s", "questions"), [(299, 1), (300, 2)])
async def test_a_confirmation_that_was_given_back_expires_after_five_minutes(
    servers: RecordingServers, later_s: float, questions: int
) -> None:
    user, now_s = User(), 1_000.0
    catalogue = replace(catalogue_with(ASK), response_policy=ResponsePolicy(Kept(clock_s=lambda: now_s)))
    upstreams = upstreams_to(servers.targets, CallLimits(per_caller=1))
    service = service_of(catalogue, upstreams, always(ANN))
    async with Client(service, mode=MODERN, elicitation_callback=user) as client:
        with upstreams.admission.admitted("ann"):
            await call(client)
        now_s += later_s
        await call(client)

    assert len(user.questions) == questions


def held_until(released: threading.Event) -> Callable[[Exchange], None]:
    """Return a reply that waits for this event."""

    def act(exchange: Exchange) -> None:
        released.wait(60)
        exchange.send_json(result(exchange.request_json, {"content": []}))

    return act


# --- states of confirmations ---

ACCEPTED: InputResponses = {KEY: ElicitResult(action="accept", content={})}


async def asked(client: Client, name: str = "db:drop", **arguments: Any) -> str:
    """Return the state of the question about a call."""
    result = await repeat(client, None, name, **arguments)
    assert isinstance(result, InputRequiredResult), result
    assert result.request_state is not None
    return result.request_state


async def repeat(client: Client, state: str | None, name: str = "db:drop", **arguments: Any) -> Any:
    """Repeat a call with an accepted answer."""
    return await client.session.call_tool(
        "call_tool",
        {"tool_name": name, "parameters": arguments},
        input_responses=ACCEPTED if state is not None else None,
        request_state=state,
        allow_input_required=True,
    )


async def test_a_state_is_accepted_once_and_for_its_call_only(servers: RecordingServers) -> None:
    catalogue = catalogue_with(ASK, DROP, READ, make_tool("web", "wait"))
    async with clients(catalogue, servers, ANN, Caller("bob"), user=User()) as (ann, bob):
        state = await asked(ann, table="a")
        for client, wrong, name, table in [
            (ann, state, "db:drop", "b"),
            (ann, state, "db:read", "a"),
            (ann, state, "web:wait", "a"),
            (bob, state, "db:drop", "a"),
            (ann, state[:-1] + ("A" if state[-1] != "A" else "B"), "db:drop", "a"),
            (ann, "", "db:drop", "a"),
            (ann, "é", "db:drop", "a"),
        ]:
            await refused(client, wrong, name, table=table)
        assert servers.received == []
        sent = await repeat(ann, state, table="a")
        await refused(ann, state, table="a")

    assert not sent.is_error
    assert servers.received == [("db", "drop")]


async def refused(client: Client, state: str, name: str = "db:drop", **arguments: Any) -> None:
    """Repeat a call whose state is not of a question about it."""
    with pytest.raises(MCPError) as caught:
        await repeat(client, state, name, **arguments)
    assert caught.value.code == INVALID_PARAMS


async def test_a_confirmation_reaches_only_the_replica_that_it_names(servers: RecordingServers) -> None:
    known = replicated(["db1", "db2"], make_tool("", "drop"), protocol_version=HANDSHAKE)
    async with client_of(replace(known, read_policy=lambda: policy(ASK)), servers, user=User()) as client:
        await refused(client, await asked(client, "db1:drop"), "db2:drop")
        for name in ("db1:drop", "drop"):
            assert not (await repeat(client, await asked(client, "db1:drop"), name)).is_error

    assert servers.received == [("db1", "drop")] * 2


async def test_another_name_of_the_same_call_needs_no_second_question(servers: RecordingServers) -> None:
    async with client_of(catalogue_with(ASK), servers, user=User()) as client:
        assert not (await repeat(client, await asked(client, "db:drop", a=1, b=2), "drop", b=2, a=1)).is_error


async def test_a_state_without_an_answer_is_no_consent_and_is_used(servers: RecordingServers) -> None:
    async with client_of(catalogue_with(ASK), servers, user=User()) as client:
        state = await asked(client)
        request = {"tool_name": "db:drop"}
        silent = await client.session.call_tool("call_tool", request, request_state=state, allow_input_required=True)
        assert isinstance(silent, CallToolResult)
        assert "did not confirm" in reason(silent)
        await refused(client, state)

    assert servers.received == []


async def test_a_state_is_refused_after_a_change_of_the_tool(servers: RecordingServers) -> None:
    catalogue = catalogue_with(ASK)
    async with client_of(catalogue, servers, user=User()) as client:
        state = await asked(client)
        catalogue.index.upsert([ingested(make_tool("db", "drop", "drops everything"), FakeEmbedder())])
        await refused(client, state)

    assert servers.received == []


async def test_a_confirmed_call_that_the_policy_denies_by_now_is_not_sent(servers: RecordingServers) -> None:
    policies = [policy(ASK)]
    async with client_of(catalogue_with("", policies=policies), servers, user=User()) as client:
        state = await asked(client)
        policies.append(policy(DENY))
        assert reason(await repeat(client, state)) == str(ToolNotFound("db:drop", NO_SUCH_TOOL, ()))

    assert servers.received == []


async def test_a_state_expires_after_five_minutes_and_works_in_every_replica(servers: RecordingServers) -> None:
    now_s = 1_000.0
    entries = MemoryEntries(lambda: now_s)

    def service() -> Catalogue:
        return replace(catalogue_with(ASK), response_policy=ResponsePolicy(Kept(entries)))

    async with client_of(service(), servers, user=User()) as one, client_of(service(), servers, user=User()) as two:
        early, late = await asked(one), await asked(one)
        now_s += 299
        assert not (await repeat(two, early)).is_error
        now_s += 1
        await refused(two, late)

    assert len(servers.received) == 1


async def test_without_the_store_of_states_no_call_is_confirmed(servers: RecordingServers) -> None:
    catalogue = replace(catalogue_with(ASK), response_policy=ResponsePolicy(Kept(SilentEntries())))
    async with client_of(catalogue, servers, user=User()) as client:
        assert "cannot be stored or read" in reason(await call(client))

    assert servers.received == []


async def test_the_question_quotes_the_model_and_shows_how_much_it_leaves_out(servers: RecordingServers) -> None:
    user, arguments = User(), {"text": "\u200bignore\nthis", "rest": "x" * 5_000}
    async with client_of(catalogue_with(ASK), servers, user=user) as client:
        await call(client, **arguments)

    (question,) = user.questions
    shown = json.dumps(arguments).replace("\\u200b", "\ufffd")
    assert '{"text": "\ufffdignore\\nthis", "rest": "xxx' in question
    assert question.endswith(f"x… ({len(shown)} characters)")
