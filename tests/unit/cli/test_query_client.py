"""The errors of a running service as those of the command line, which decide on its exit code."""

from __future__ import annotations

import pytest
from mcp.types import CLIENT_INFO_META_KEY, INTERNAL_ERROR, INVALID_PARAMS

from query.usage.record import COMMAND_LINE
from shared.errors import ServiceRejected, ServiceUnreachable, ToolscaleError
from shared.settings import load_settings
from tests.support.hostile.messages import failure
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.hostile.scripts import GOOD
from toolscale.client.query import open_call_client


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(INVALID_PARAMS, ServiceRejected, id="an invalid argument"),
        pytest.param(INTERNAL_ERROR, ServiceUnreachable, id="a call that a stopping service cut off"),
    ],
)
def test_only_an_error_of_the_request_is_a_rejection(code: int, expected: type[ToolscaleError]) -> None:
    def respond(exchange: Exchange) -> None:
        if exchange.method == "tools/call":
            exchange.send_json(failure(exchange.request_json, code, "some words"))
        else:
            exchange.play(GOOD)

    with (
        scripted_http(respond) as server,
        pytest.raises(expected, match="some words"),
        open_call_client(load_settings(), server.url) as call,
    ):
        call("find_tool", {})


def test_a_command_names_itself_so_that_its_answers_count_for_no_agent() -> None:
    clients: list[str | None] = []

    def respond(exchange: Exchange) -> None:
        meta = exchange.request_json.get("params", {}).get("_meta", {})
        clients.append(meta.get(CLIENT_INFO_META_KEY, {}).get("name"))
        exchange.play(GOOD)

    with (
        scripted_http(respond) as server,
        pytest.raises(ServiceRejected),
        open_call_client(load_settings(), server.url) as call,
    ):
        call("find_tool", {})

    assert set(filter(None, clients)) == {COMMAND_LINE}
