"""The options of a server at the time of a call: its excluded tools are not called, and its own time limits calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from query.caller import Caller
from query.calling.call import CallRequest, resolve_tool
from query.calling.limits import CallLimits
from query.catalogue import Catalogue
from query.policy import Policy
from shared.errors import ToolExcluded
from shared.upstream.options import ServerOptions
from tests.support.calling import calling, catalogue_of, options_of, replicated, text_of
from tests.support.fakes import make_tool
from tests.support.hostile.scripts import hangs
from tests.support.policies import policy, recording_servers, rule

pytestmark = [pytest.mark.process, pytest.mark.anyio]

DROP = make_tool("r0", "drop")
ANN = Caller("ann")
WITHOUT_DROP = ServerOptions(exclude_tools=("dr*",))


def with_options(catalogue: Catalogue, options: Mapping[str, ServerOptions], rules: str = "") -> Catalogue:
    def read_policy() -> Policy:
        return policy(rules)

    return replace(catalogue, read_options=options_of(options), read_policy=read_policy)


async def test_a_tool_that_is_still_indexed_is_not_called_once_the_operator_excludes_it() -> None:
    with recording_servers(["r0"]) as servers:
        catalogue = with_options(catalogue_of([DROP]), {"r0": WITHOUT_DROP})
        async with calling(servers.targets, catalogue=catalogue) as client:
            called = await client.call_tool("call_tool", {"tool_name": "r0:drop"})

    assert called.is_error
    assert "the operator excludes drop" in text_of(called)
    assert servers.received == []


async def test_a_replica_that_excludes_the_tool_gets_no_call() -> None:
    replicas = ["r0", "r1"]
    with recording_servers(replicas) as servers:
        catalogue = with_options(replicated(replicas, DROP, first="r0"), {"r0": WITHOUT_DROP})
        async with calling(servers.targets, catalogue=catalogue) as client:
            for _ in range(4):
                await client.call_tool("call_tool", {"tool_name": "drop"})

    assert servers.received == [("r1", "drop")] * 4


def test_a_tool_that_one_replica_excludes_and_the_policy_denies_on_the_other_is_not_called() -> None:
    catalogue = replicated(["r0", "r1"], DROP)
    request = CallRequest(tool_name="drop")

    with pytest.raises(ToolExcluded):
        resolve_tool(request, ANN, with_options(catalogue, {"r0": WITHOUT_DROP}, rule(servers=["r1"])))


async def test_the_time_of_a_server_limits_its_calls_in_place_of_the_usual_one() -> None:
    with recording_servers(["r0"]) as servers:
        servers.on_call = {"r0": hangs}
        catalogue = with_options(catalogue_of([DROP]), {"r0": ServerOptions(timeout_s=0.5)})
        async with calling(servers.targets, limits=CallLimits(timeout_s=600), catalogue=catalogue) as client:
            called = await client.call_tool("call_tool", {"tool_name": "r0:drop"})

    assert "no answer within 0.5 s" in text_of(called)


@pytest.mark.parametrize(("times_s", "timeout_s"), [({}, None), ({"r0": 5.0}, 5.0), ({"r0": 5.0, "r1": 300.0}, 300.0)])
def test_a_call_has_the_longest_time_of_its_replicas(times_s: Mapping[str, float], timeout_s: float | None) -> None:
    options = {server_id: ServerOptions(timeout_s=time_s) for server_id, time_s in times_s.items()}

    resolved = resolve_tool(CallRequest(tool_name="drop"), ANN, with_options(replicated(["r0", "r1"], DROP), options))

    assert resolved.timeout_s == timeout_s
