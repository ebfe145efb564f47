"""A call that may not be repeated reaches at most one server, whatever the replicas do; an answer is never repeated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from query.calling.call import tool_call
from query.calling.limits import CallLimits
from query.calling.sessions import CallResources, Progress
from query.calling.upstreams import Upstreams
from shared.errors import Delivery, ServerError
from shared.upstream.target import HttpTarget
from tests.support.calling import replica_record, upstreams_to
from tests.support.fakes import make_tool
from tests.support.hostile.messages import failure
from tests.support.hostile.scripted_http import Exchange, Respond, ScriptedServer, scripted_http
from tests.support.hostile.scripts import GOOD, answers, hangs_up, status
from tests.support.profiles import examples

REPLICAS = 3
FINE = {"content": [{"type": "text", "text": "fine"}]}
HANDSHAKE = "2025-11-25"

# a server that replies with these has not carried out the call
REFUSALS = ("401", "403", "404", "405", "410", "429")


# The replies to a call; "fine" and "error" are answers.
REPLIES: Mapping[str, Respond] = {
    "fine": answers(FINE),
    "error": lambda exchange: exchange.send_json(failure(exchange.request_json, -32603, "no")),
    "hangs up": hangs_up,
    "503": lambda exchange: exchange.send(503),
    "400": lambda exchange: exchange.send(400),
    **{code: status(int(code)) for code in REFUSALS},
}
# The replies to a handshake.
OPENINGS: Mapping[str, Respond] = {
    "good": lambda exchange: exchange.play(GOOD),
    "hangs up": hangs_up,
    "503": lambda exchange: exchange.send(503),
}

_reply = st.tuples(st.sampled_from(sorted(OPENINGS)), st.sampled_from(sorted(REPLIES)))
# a script has the replies of each replica, call by call
_script = st.lists(st.lists(_reply, min_size=REPLICAS, max_size=REPLICAS), min_size=1, max_size=4)
Script = list[list[tuple[str, str]]]


class _Fleet:
    """Three replicas that follow one step of a script, and the calls that each of them received."""

    def __init__(self, stack: ExitStack) -> None:
        self.step: Sequence[tuple[str, str]] = ()
        self.received: list[str] = []
        self._servers = [stack.enter_context(scripted_http(self._respond)) for _ in range(REPLICAS)]
        self.upstreams = self._upstreams()

    def _upstreams(self) -> Upstreams:
        targets = {f"r{number}": HttpTarget(server.url) for number, server in enumerate(self._servers)}
        return upstreams_to(targets, CallLimits(timeout_s=30))

    def _respond(self, exchange: Exchange) -> None:
        opening, reply = self.step[self._number(exchange.server)]
        if exchange.method == "tools/call":
            self.received.append(reply)
            REPLIES[reply](exchange)
        else:
            OPENINGS[opening](exchange)

    def _number(self, server: ScriptedServer) -> int:
        return self._servers.index(server)


@pytest.fixture(scope="module")
def fleet() -> Iterator[_Fleet]:
    with ExitStack() as stack:
        yield _Fleet(stack)


async def _call(fleet: _Fleet, *, is_repeatable: bool) -> None:
    async def ignore(progress: float, total: float | None, message: str | None) -> None: ...

    replicas = tuple(replica_record(f"r{number}", protocol_version=HANDSHAKE) for number in range(REPLICAS))
    with fleet.upstreams.admission.admitted("ann") as slot:
        resources = CallResources(Progress(ignore), slot)
        await fleet.upstreams.call(
            tool_call(make_tool("r0", "one").definition, {}), replicas, resources, is_repeatable=is_repeatable
        )


async def _play(
    fleet: _Fleet, script: Script, *, is_repeatable: bool
) -> list[tuple[ServerError | None, Sequence[str]]]:
    """Return the error of the call in each step, and what the servers received."""
    outcomes: list[tuple[ServerError | None, Sequence[str]]] = []
    async with fleet.upstreams.running():
        for step in script:
            fleet.step, fleet.received = step, []
            error: ServerError | None = None
            try:
                await _call(fleet, is_repeatable=is_repeatable)
            except ServerError as failed:
                error = failed
            outcomes.append((error, fleet.received))
    return outcomes


@settings(max_examples=examples(60))
@example(script=[[("good", "hangs up")] * 3], is_repeatable=False)
@example(script=[[("good", "fine")] * 3, [("good", "404")] * 3, [("good", "hangs up")] * 3], is_repeatable=False)
@example(script=[[("good", code)] * 3 for code in REFUSALS], is_repeatable=False)
@example(script=[[("good", "503")] * 3, [("hangs up", "fine")] * 3], is_repeatable=True)
@given(script=_script, is_repeatable=st.booleans())
def test_a_call_is_received_again_only_where_it_may_be_repeated(
    fleet: _Fleet, script: Script, is_repeatable: bool
) -> None:
    for error, received in anyio.run(lambda: _play(fleet, script, is_repeatable=is_repeatable)):
        carried_out = [reply for reply in received if reply not in REFUSALS]
        assert is_repeatable or len(carried_out) <= 1
        assert all(reply in ("hangs up", "503", "400") for reply in carried_out[:-1]), "an answer was repeated"
        assert (error is None) == (carried_out[-1:] == ["fine"])
        if error and "was not carried out" in str(error):
            assert not carried_out
        if error and not carried_out:
            assert "was not carried out" in str(error)
        if error and carried_out[-1:] == ["error"]:
            assert error.delivery is Delivery.ANSWERED
