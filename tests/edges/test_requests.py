"""Messages of clients that are nearly right are answered, and those that cannot be read are too, with their id."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.streaming import readable_request
from shared.json_rpc import RequestRefused, read_request
from shared.service.http import HttpLimits
from tests.edges.test_violations import PYDANTIC
from tests.support.fakes import FakeIndex
from tests.support.http_callers import app_of
from tests.support.http_limits import Address, limited_server
from tests.support.stdio_client import StdioClient, stdio_client

pytestmark = pytest.mark.process

CALL = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"find_tool","arguments":%s}}'

ANSWERED: dict[str, bytes] = {
    "half a character": CALL % rb'{"tool_description":"half \ud83d"}',
    "Latin-1": CALL % b'{"tool_description":"caf\xe9"}',
    "a control character": CALL % b'{"tool_description":"bell \x07"}',
    "NaN": CALL % b'{"tool_description":"x","limit":NaN}',
    "a byte order mark": b'\xef\xbb\xbf{"jsonrpc":"2.0","id":5,"method":"tools/list"}',
    "UTF-16": '{"jsonrpc":"2.0","id":5,"method":"ping"}'.encode("utf-16-le"),
    "an id as a float": b'{"jsonrpc":"2.0","id":5.0,"method":"tools/list"}',
    "null parameters": b'{"jsonrpc":"2.0","id":5,"method":"tools/list","params":null}',
}
# Each with the code of its error, the id that can be read, and the field that is named.
REFUSED: dict[str, tuple[bytes, int, int | None, str]] = {
    "a cut message": (b'{"jsonrpc":"2.0","id":5,"method":"tools/list","par', -32700, 5, "JSON"),
    "cut within its parameters": (CALL[:-2] % b'{"id":7,', -32700, 5, "JSON"),
    "cut before its id": (b'{"jsonrpc":"2.0","i', -32700, None, "JSON"),
    "no JSON": (b"\xff\xfe\x00hello", -32700, None, "JSON"),
    "far too deep": (b"[" * 5_000 + b"]" * 5_000, -32700, None, ""),
    "too deep": (CALL % (b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"), -32700, 5, "deep"),
    "no version": (b'{"id":5,"method":"tools/list"}', -32600, 5, "jsonrpc"),
    "an older version": (b'{"jsonrpc":"1.0","id":5,"method":"tools/list"}', -32600, 5, "jsonrpc"),
    "no method": (b'{"jsonrpc":"2.0","id":5}', -32600, 5, "method"),
    "a number as the method": (b'{"jsonrpc":"2.0","id":5,"method":7}', -32600, 5, "method"),
    "a list of parameters": (b'{"jsonrpc":"2.0","id":5,"method":"tools/list","params":[1]}', -32600, 5, "params"),
    "a text as parameters": (b'{"jsonrpc":"2.0","id":5,"method":"tools/list","params":""}', -32600, 5, "params"),
    "a fraction as the id": (b'{"jsonrpc":"2.0","id":5.5,"method":"tools/list"}', -32600, None, "id"),
    "a list as the id": (b'{"jsonrpc":"2.0","id":[5],"method":"tools/list"}', -32600, None, "id"),
    "true as the id": (b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}', -32600, None, "id"),
    "a batch": (b'[{"jsonrpc":"2.0","id":5,"method":"tools/list"}]', -32600, None, "batch"),
    "a text": (b'"hello"', -32600, None, "object"),
}


@pytest.fixture(scope="module")
def address() -> Generator[Address]:
    with limited_server(app_of(FakeIndex()), HttpLimits()) as service:
        yield service


def post(address: Address, body: bytes) -> httpx2.Response:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    return httpx2.post(f"http://{address[0]}:{address[1]}/mcp", content=body, headers=headers, timeout=60)


@pytest.mark.parametrize("name", ANSWERED)
def test_a_request_that_is_nearly_right_is_answered_over_http(name: str, address: Address) -> None:
    response = post(address, ANSWERED[name])

    assert response.status_code == 200
    assert response.json()["id"] == 5
    assert "result" in response.json()


@pytest.mark.parametrize("name", REFUSED)
def test_a_message_that_is_none_is_refused_over_http(name: str, address: Address) -> None:
    body, code, number, field = REFUSED[name]

    response = post(address, body)

    assert response.status_code == 400
    assert_refused(response.json(), code, number, field)


def assert_refused(answer: dict[str, Any], code: int, number: int | None, field: str) -> None:
    assert (answer["error"]["code"], answer["id"]) == (code, number)
    assert field in answer["error"]["message"]
    assert not [word for word in PYDANTIC if word in json.dumps(answer)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[StdioClient]:
    with stdio_client(tmp_path_factory.mktemp("data")) as client:
        yield client


def test_each_message_over_stdio_is_answered(client: StdioClient) -> None:
    for number, (body, *_) in enumerate(REFUSED.values()):
        client.write(body.replace(b'"id":5', b'"id":%d' % (1_000 + number)) + b"\n")
    answered = [body for name, body in ANSWERED.items() if name != "UTF-16"]
    for number, body in enumerate(answered):
        client.write(body.replace(b'"id":5', b'"id":%d' % (2_000 + number)) + b"\n")
    for number in range(len(answered)):
        assert "result" in client.answer(2_000 + number)

    refused = [message for message in client.messages() if "error" in message]

    for number, (answer, (_, code, known, field)) in enumerate(zip(refused, REFUSED.values(), strict=True)):
        assert_refused(answer, code, known and 1_000 + number, field)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]), json_values)


@given(parts=messages, is_whole=st.booleans(), junk=st.binary(max_size=3), at=st.integers(0))
def test_any_message_is_read_or_refused(parts: dict[str, Any], is_whole: bool, junk: bytes, at: int) -> None:
    text = json.dumps({"jsonrpc": "2.0", "id": 5, "method": "ping"} | parts if is_whole else parts).encode()
    at %= len(text) + 1
    text = text[:at] + junk + text[at:]

    for read in (read_request, readable_request):
        refused: RequestRefused | None = None
        try:
            read(text)
        except RequestRefused as error:
            refused = error
        if refused:
            assert refused.answer["error"]["code"] in (-32700, -32600)
            assert json.dumps(refused.answer, ensure_ascii=False).encode()
            assert not [word for word in PYDANTIC if word in str(refused)]
