"""Questions of servers to a caller's client: as results of the newest revision, and in mid-call before it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from mcp import Client, MCPError
from mcp.types import CallToolResult, InputRequiredResult, ResourceLink
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitResult,
    InputResponses,
    TextContent,
    TextResourceContents,
)

from query.answers.budget import ResponsePolicy
from query.caller import Caller
from query.calling.dialogue import WaitingCalls
from query.calling.limits import CallLimits
from query.catalogue import Catalogue
from query.kept import Kept, MemoryEntries
from query.mcp import service_of
from shared.upstream.target import Target
from tests.support.asked import ANSWERS, KINDS, Person
from tests.support.calling import catalogue_of, replicated, text_of, tool_of, upstreams_to
from tests.support.hostile.processes import callable_stdio, callable_target
from tests.support.policies import always, policy, rule
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
ANN = Caller("ann")
ASKS, LINKS = tool_of("s", "asks"), tool_of("s", "links")


@pytest.fixture(scope="module", params=["stdio", "http"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with callable_target(request.param) as target:
        yield target


@pytest.fixture(params=[MODERN, HANDSHAKE])
def era(request: pytest.FixtureRequest) -> str:
    """The revision that the servers speak."""
    return str(request.param)


@asynccontextmanager
async def clients(
    catalogue: Catalogue, targets: dict[str, Target], *clients: tuple[Caller, Person | None], mode: str = MODERN
) -> AsyncGenerator[list[Client]]:
    """Yield a client for each of these callers of one service; without a person it cannot be asked."""
    upstreams = upstreams_to(targets)
    async with AsyncExitStack() as stack:
        opened: list[Client] = []
        for caller, person in clients:
            service = service_of(catalogue, upstreams, always(caller))
            client = person.client(service, mode) if person else Client(service, mode=mode)
            opened.append(await stack.enter_async_context(client))
        yield opened


@asynccontextmanager
async def client_of(
    catalogue: Catalogue, target: Target, person: Person | None, mode: str = MODERN
) -> AsyncGenerator[Client]:
    async with clients(catalogue, {"s": target}, (ANN, person), mode=mode) as (client,):
        yield client


async def call(client: Client, *kinds: str, tool: str = "s:asks") -> CallToolResult:
    return await client.call_tool("call_tool", {"tool_name": tool, "parameters": {"kinds": list(kinds)}})


async def asked(
    client: Client,
    *kinds: str,
    state: str | None = None,
    tool: str = "s:asks",
    answers: InputResponses | None = None,
) -> Any:
    """Send a call once, with these answers; return its result or its question."""
    request = {"tool_name": tool, "parameters": {"kinds": list(kinds)}}
    return await client.session.call_tool(
        "call_tool", request, request_state=state, input_responses=answers, allow_input_required=True
    )


async def state_of(client: Client, *kinds: str, tool: str = "s:asks") -> tuple[str, str]:
    """Return the state and the key of the first question of a call."""
    question = await asked(client, *kinds, tool=tool)
    assert isinstance(question, InputRequiredResult), question
    (key,) = question.input_requests or {}
    return question.request_state or "", key


ACCEPTED = ElicitResult(action="accept", content={"branch": "main"})


async def test_every_kind_of_question_reaches_the_client_and_every_answer_the_server(target: Target, era: str) -> None:
    person = Person()
    async with client_of(catalogue_of([ASKS], era), target, person) as client:
        result = await call(client, *KINDS)
        again = await call(client, "form", "form")

    _, _, *given = json.loads(text_of(result))
    assert given == [ANSWERS[kind] for kind in KINDS]
    assert person.asked == ["s: Which branch?", "s: Pay here", "sampling", "roots", *["s: Which branch?"] * 2]
    assert not again.is_error


async def test_a_client_that_cannot_answer_gets_the_name_of_what_the_server_asked_for(target: Target, era: str) -> None:
    async with client_of(catalogue_of([ASKS], era), target, None) as client:
        results = [text_of_last(await call(client, kind)) for kind in KINDS]

    for result, name in zip(results, ("Which branch?", "https://pay.example/1", "sampling", "roots"), strict=True):
        assert name in result


async def test_an_older_client_without_the_proxy_gets_the_same_error(target: Target, era: str) -> None:
    async with client_of(catalogue_of([ASKS], era), target, Person(), mode="legacy") as client:
        assert "elicitation of mode form" in text_of_last(await call(client, "form"))


def text_of_last(result: CallToolResult) -> str:
    assert result.is_error, result
    block = result.content[-1]
    assert isinstance(block, TextContent)
    return block.text


async def test_the_server_sees_what_the_callers_client_can_be_asked_and_no_more() -> None:
    catalogue = catalogue_of([tool_of("s", "capabilities")], MODERN)
    with callable_target("http") as target:
        async with clients(catalogue, {"s": target}, (ANN, Person()), (ANN, None)) as (able, unable):
            seen = [json.loads(text_of(await call(client, tool="s:capabilities"))) for client in (able, unable)]

    assert seen == [{"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}, {}]


@pytest.mark.parametrize("mode", [MODERN, "legacy"])
async def test_what_a_server_requires_of_a_client_that_lacks_it_is_named(mode: str) -> None:
    catalogue = catalogue_of([tool_of("s", "requires")], MODERN)
    with structlog.testing.capture_logs() as lines:
        async with client_of(catalogue, callable_stdio(), None, mode=mode) as client:
            if mode == MODERN:
                with pytest.raises(MCPError) as caught:
                    await call(client, tool="s:requires")
                assert caught.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
                assert caught.value.error.data == {"requiredCapabilities": {"sampling": {}}}
            else:
                assert "asks the client for sampling" in text_of_last(await call(client, tool="s:requires"))

    assert [line["outcome"] for line in lines if line["event"] == "tool_called"] == ["ServerFailed"]


async def test_a_state_is_of_one_caller_and_one_call_and_works_once(target: Target, era: str) -> None:
    catalogue = catalogue_of([ASKS], era)
    async with clients(catalogue, {"s": target}, (ANN, Person()), (Caller("bob"), Person())) as (ann, bob):
        state, key = await state_of(ann, "form")
        given: InputResponses = {key: ACCEPTED}
        await refused(bob, "form", state=state, answers=given)
        await refused(ann, "form", "form", state=state, answers=given)
        await refused(ann, "form", state=state[:-1] + ("A" if state[-1] != "A" else "Q"), answers=given)
        await refused(ann, "form", state="tampered", answers=given)
        result = await asked(ann, "form", state=state, answers=given)
        await refused(ann, "form", state=state, answers=given)

    assert json.loads(text_of(result))[2:] == [ANSWERS["form"]]


async def refused(client: Client, *kinds: str, **more: Any) -> None:
    with pytest.raises(MCPError) as caught:
        await asked(client, *kinds, **more)
    assert caught.value.code == INVALID_PARAMS


async def test_the_answer_goes_to_the_replica_that_asked_and_to_no_other(era: str) -> None:
    names = ("s1", "s2", "s3")
    catalogue = replicated(names, tool_of("", "asks"), protocol_version=era)
    targets: dict[str, Target] = {name: callable_stdio() for name in names}
    async with clients(catalogue, targets, (ANN, Person())) as (client,):
        for _ in range(8):
            asked_by, answered_to, _ = json.loads(text_of(await call(client, "form", tool="asks")))
            assert asked_by == answered_to
        state, key = await state_of(client, "form", tool="s2:asks")
        for other in ("s1:asks", "s3:asks"):
            await refused(client, "form", state=state, tool=other, answers={key: ACCEPTED})


async def test_a_question_of_a_server_comes_after_the_confirmation_and_needs_no_second_one(
    target: Target, era: str
) -> None:
    person = Person()
    catalogue = replace(catalogue_of([ASKS], era), read_policy=lambda: policy(rule("ask")))
    async with client_of(catalogue, target, person) as client:
        result = await call(client, "form")
        state, key = await state_of(client, "form")
        await refused(client, "form", state=f"{state}x", answers={key: ACCEPTED})

    assert not result.is_error
    assert [question.partition(":")[0] for question in person.asked] == [
        'Call the tool asks of the server s with these arguments? {"kinds"',
        "s",
    ]


async def test_a_read_that_requires_input_is_answered_too() -> None:
    person = Person()
    async with client_of(catalogue_of([LINKS], MODERN), callable_stdio(), person) as client:
        parameters = {"tool": "asks", "arguments": {"kinds": ["form"]}}
        linked = await client.call_tool("call_tool", {"tool_name": "s:links", "parameters": parameters})
        (uri,) = [block.uri for block in linked.content if isinstance(block, ResourceLink)]
        read = await client.read_resource(uri)

    (contents,) = read.contents
    assert isinstance(contents, TextResourceContents)
    assert json.loads(contents.text)[2:] == [ANSWERS["form"]]
    assert person.asked == ["s: Which branch?"]


# --- questions in mid-call ---


async def test_a_call_that_waits_counts_among_those_of_its_caller_and_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("query.calling.dialogue.MOST_WAITING", 1)
    catalogue = catalogue_of([ASKS], HANDSHAKE)
    with callable_target("http") as target:
        upstreams = upstreams_to({"s": target}, CallLimits(timeout_s=30, per_caller=1))
        services = [service_of(catalogue, upstreams, always(caller)) for caller in (ANN, Caller("bob"))]
        async with Person().client(services[0], MODERN) as ann, Person().client(services[1], MODERN) as bob:
            await state_of(ann, "form")
            second, of_bob = await call(ann, "form"), await call(bob, "form")

    assert "ann has 1 calls in flight" in text_of_last(second)
    assert "1 calls wait for answers of clients" in text_of_last(of_bob)


async def test_a_call_has_few_open_questions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("query.calling.dialogue.MOST_QUESTIONS", 1)
    catalogue = catalogue_of([tool_of("s", "asks_at_once")], HANDSHAKE)
    async with client_of(catalogue, callable_stdio(), Person()) as client:
        counts = json.loads(text_of(await call(client, *["form"] * 12, tool="s:asks_at_once")))

    assert counts["answered"] >= 1
    assert counts["refused"] >= 1
    assert counts["answered"] + counts["refused"] == 12


async def test_a_call_that_its_client_cancels_after_an_answer_is_cancelled_at_the_server(tmp_path: Path) -> None:
    told = tmp_path / "told"
    catalogue = catalogue_of([tool_of("s", "asks_and_waits")], HANDSHAKE)
    async with client_of(catalogue, callable_stdio(), Person()) as client:
        request = {"tool_name": "s:asks_and_waits", "parameters": {"file": str(told)}}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "call_tool", request)
            await anyio.to_thread.run_sync(eventually, lambda: told.exists() and told.read_text() == "began")
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(eventually, lambda: told.read_text() == "cancelled")


async def test_over_stdio_a_question_while_two_calls_are_in_flight_is_refused_and_the_first_call_goes_on() -> None:
    catalogue = catalogue_of([ASKS], HANDSHAKE)
    async with client_of(catalogue, callable_stdio(), Person()) as client:
        state, key = await state_of(client, "form")
        second = text_of_last(await call(client, "form"))
        first = await asked(client, "form", state=state, answers={key: ACCEPTED})

    assert "elicitation of mode form" in second
    assert "2 calls are in flight" in second
    assert json.loads(text_of(first))[2:] == [ANSWERS["form"]]


async def test_over_stdio_no_question_reaches_a_client_once_several_callers_have_shared_the_process() -> None:
    catalogue = catalogue_of([ASKS], HANDSHAKE)
    people = Person(), Person()
    async with clients(catalogue, {"s": callable_stdio()}, (ANN, people[0]), (Caller("bob"), people[1])) as (ann, bob):
        alone = await call(ann, "form")
        after = [text_of_last(await call(client, "form")) for client in (bob, ann)]

    assert json.loads(text_of(alone))[2:] == [ANSWERS["form"]]
    assert all("several callers use this session" in text for text in after)
    assert [len(person.asked) for person in people] == [1, 0], "the question may be a late one of ann's call"


async def test_over_http_two_calls_that_wait_get_each_its_own_answer() -> None:
    catalogue = catalogue_of([ASKS], HANDSHAKE)
    with callable_target("http") as target:
        async with client_of(catalogue, target, Person()) as client:
            (one, key), (two, _) = await state_of(client, "form"), await state_of(client, "form")
            for state, branch in ((two, "second"), (one, "first")):
                answer = ElicitResult(action="accept", content={"branch": branch})
                result = await asked(client, "form", state=state, answers={key: answer})
                assert json.loads(text_of(result))[2]["content"] == {"branch": branch}


async def test_a_call_that_no_client_continues_ends_and_gives_its_place_back() -> None:
    upstreams = upstreams_to({"s": callable_stdio()}, CallLimits(timeout_s=30, per_caller=1))
    upstreams.waiting = WaitingCalls(answer_s=0.2)
    service = service_of(catalogue_of([ASKS], HANDSHAKE), upstreams, always(ANN))
    async with Person().client(service, MODERN) as client:
        state, key = await state_of(client, "form")
        await anyio.to_thread.run_sync(eventually, lambda: not upstreams.admission._in_flight)  # pyright: ignore[reportPrivateUsage]  # a call would take the place
        await refused(client, "form", state=state, answers={key: ACCEPTED})
        result = await call(client, "form")

    assert json.loads(text_of(result))[2:] == [ANSWERS["form"]]


async def test_another_process_of_the_service_refuses_the_state_of_a_call_that_waits_here() -> None:
    def service() -> Catalogue:
        return replace(catalogue_of([ASKS], HANDSHAKE), response_policy=ResponsePolicy(Kept(entries)))

    entries = MemoryEntries()
    target = callable_stdio()
    async with client_of(service(), target, Person()) as one, client_of(service(), target, Person()) as other:
        state, key = await state_of(one, "form")
        await refused(other, "form", state=state, answers={key: ACCEPTED})
        result = await asked(one, "form", state=state, answers={key: ACCEPTED})

    assert not result.is_error


async def test_a_result_of_the_newest_revision_is_continued_by_any_process_of_the_service() -> None:
    def service() -> Catalogue:
        return replace(catalogue_of([ASKS], MODERN), response_policy=ResponsePolicy(Kept(entries)))

    entries = MemoryEntries()
    target = callable_stdio()
    async with client_of(service(), target, Person()) as one, client_of(service(), target, Person()) as other:
        state, key = await state_of(one, "form")
        result = await asked(other, "form", state=state, answers={key: ACCEPTED})

    assert json.loads(text_of(result))[2:] == [ANSWERS["form"]]
