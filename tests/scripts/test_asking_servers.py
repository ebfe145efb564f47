"""A server that asks the caller's client ends the script, and nobody is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from query.caller import Caller
from query.mcp import service_of
from shared.upstream.target import Target
from tests.scripts.site import facts, outcomes
from tests.support.asked import KINDS, Person
from tests.support.calling import catalogue_of, tool_of, upstreams_to
from tests.support.hostile.processes import callable_target
from tests.support.policies import always

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with callable_target("http") as target:
        yield target


@pytest.mark.parametrize("era", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_asks_ends_the_script_and_asks_nobody(target: Target, era: str, kind: str) -> None:
    person = Person()
    catalogue = catalogue_of([tool_of("s", "asks"), tool_of("s", "counts")], era)
    service = service_of(catalogue, upstreams_to({"s": target}), always(Caller("ann")))
    source = (
        f'await call("s:counts")\ntry:\n    await call("s:asks", {{"kinds": [{kind!r}]}})\n'
        'except ToolError:\n    pass\nawait call("s:counts")'
    )

    async with person.client(service, "2026-07-28") as client:
        answer = await client.call_tool("run_script", {"source": source})

    assert answer.is_error
    assert facts(answer)["line"] == 3
    assert "s:asks needs the user" in facts(answer)["error"]
    assert [outcome.partition(" ")[0] for outcome, _ in outcomes(answer)] == ["s:counts", "s:asks"]
    assert person.asked == []
