"""JSON that is nearly right is read: what cannot be kept is replaced, and nothing waits for an answer."""

from __future__ import annotations

import json

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from shared.json_rpc import Unreadable
from shared.upstream.reader import parse
from tests.edges.raw_answers import TRANSPORTS, answering, called, says, texts
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = pytest.mark.process

# What a server sends as the text of a result, and what of it arrives.
TEXTS: dict[str, tuple[bytes, str]] = {
    "first half of a pair": (says(r"half \ud83d!"), "half \ufffd!"),
    "second half of a pair": (says(r"\ude00 half"), "\ufffd half"),
    "halves in the wrong order": (says(r"a \ude00\ud83d b"), "a \ufffd\ufffd b"),
    "a half beside a whole pair": (says(r"\ud83d\ude00 and \ud83d"), "\U0001f600 and \ufffd"),
    "Latin-1": (says("caf#").replace(b"#", b"\xe9"), "caf\ufffd"),
    "a character cut in half": (says("snow #").replace(b"#", b"\xe2\x98"), "snow \ufffd"),
    "raw surrogates": (says("raw #").replace(b"#", b"\xed\xa0\xbd"), "raw "),
    "a raw control character": (says("bell #").replace(b"#", b"\x07"), "bell"),
    "a byte order mark": (b"\xef\xbb\xbf" + says("marked"), "marked"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", TEXTS)
async def test_a_text_of_odd_bytes_arrives(name: str, transport: str) -> None:
    raw, expected = TEXTS[name]

    with answering(transport, raw) as target:
        (result,) = await called(target)

    assert not result.is_error
    assert texts(result).startswith(expected)


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "7" * 5_000])
async def test_a_number_that_is_none_becomes_null(number: str, transport: str) -> None:
    structured = b'"structuredContent":{"ratio":%s,"rows":2}' % number.encode()
    raw = b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],%s}}' % structured

    with answering(transport, raw) as target:
        (result,) = await called(target)

    assert not result.is_error
    assert json.loads(json.dumps(result.structured_content), parse_constant=lambda _: None) == {
        "ratio": None,
        "rows": 2,
    }


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_repairs_are_logged_once_for_a_connection(transport: str) -> None:
    with structlog.testing.capture_logs() as lines, answering(transport, says(r"\ud83d")) as target:
        await called(target, times=3)

    assert [line["server"] for line in lines if line["event"] == "server_message_repaired"] == ["srv"]


TOOLS: dict[str, bytes] = {
    "surrogate": rb'{"name":"one","description":"half \ud83d","inputSchema":{"type":"object"}}',
    "latin": b'{"name":"one","description":"caf\xe9","inputSchema":{"type":"object"}}',
    "nan": b'{"name":"one","inputSchema":{"type":"object","properties":{"x":{"default":NaN}}}}',
    "infinity": b'{"name":"one","inputSchema":{"type":"object","properties":{"x":{"maximum":1e999}}}}',
    "control": b'{"name":"one","description":"bell \x07","inputSchema":{"type":"object"}}',
}


@pytest.mark.parametrize("transport", ["stdio", "json", "events"])
@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_of_odd_bytes_is_listed(name: str, transport: str) -> None:
    raw = b'{"jsonrpc":"2.0","id":ID,"result":{"tools":[%s,{"name":"good","inputSchema":{"type":"object"}}]}}'

    with answering(transport, raw % TOOLS[name], "tools/list") as target:
        listing = fetch_tools_blocking("srv", target, Limits(timeout_s=60))

    assert [tool.name for tool in listing.tools] == ["one", "good"]
    assert not listing.rejected
    assert all(json.loads(tool.wire, parse_constant=pytest.fail) for tool in listing.tools)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(value=anything, junk=st.binary(max_size=4), at=st.integers(0))
def test_whatever_is_read_can_be_sent_on(value: object, junk: bytes, at: int) -> None:
    text = json.dumps(value).encode()
    at %= len(text) + 1

    try:
        read, _ = parse(text[:at] + junk + text[at:])
    except Unreadable:
        return

    json.dumps(read, ensure_ascii=False).encode()
    again, is_well_formed = parse(json.dumps(read, allow_nan=False).encode())
    assert (again, is_well_formed) == (read, True)
