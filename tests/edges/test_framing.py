"""Messages of stdio servers that are not one per line: understood, or named soon, in listings as in calls."""

from __future__ import annotations

import sys
import time

import pytest

from shared.errors import ProtocolViolation
from shared.upstream.target import StdioTarget
from tests.edges.raw_answers import SOON_S, called, texts
from tests.support.calling import calling, text_of, tool_of
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking

pytestmark = pytest.mark.process

_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tests.support.hostile.messages import answer, one_page, result, tool
def lines():
    while piece := sys.stdin.buffer.readline():
        try:
            yield json.loads(piece)
        except ValueError:
            pass
def write(text):
    sys.stdout.buffer.write(text.encode() if isinstance(text, str) else text)
    sys.stdout.buffer.flush()
def put(message):
    text = json.dumps(message)
    exec(sys.argv[2])
well = lambda message: print(json.dumps(message), flush=True)
for request in lines():
    method = request.get("method")
    reply = answer(request, one_page(tool("one")))
    if method == "tools/call":
        reply = result(request, {"content": [{"type": "text", "text": "fine"}]})
    if reply:
        (put if sys.argv[3] in (method, "all") else well)(reply)
"""

UNDERSTOOD: dict[str, str] = {
    "a prefix of a log": "write('INFO:server: ' + text + '\\n')",
    "a prefix with a time and brackets": "write('[2026-11-29 12:00:00,123] {main} ' + text + '\\n')",
    "colours": "write('\\x1b[32mINFO\\x1b[0m ' + text + '\\x1b[0m\\n')",
    "text after it": "write(text + ' (12 ms)\\n')",
    "a banner and a log between": 'write(\'loading...\\n{"level": "info", "msg": "ready"}\\n\\n\' + text + \'\\n\')',
    "the request, logged before": "write('DEBUG got ' + json.dumps(request) + '\\n' + text + '\\n')",
    "the answer, logged before": "write('DEBUG sends ' + text + '\\n' + text + '\\n')",
    "line ends of Windows": "write(text + '\\r\\n')",
    "no line end": "write(text)",
    "a byte order mark": "write(b'\\xef\\xbb\\xbf' + text.encode() + b'\\n')",
    "a notification on its line": (
        "write(json.dumps({'jsonrpc': '2.0', 'method': 'notifications/message', "
        "'params': {'level': 'info', 'data': 1}}) + text + '\\n')"
    ),
    "in pieces": "for at in range(0, len(text), 7): write(text[at : at + 7])\nwrite('\\n')",
}
NAMED: dict[str, tuple[str, str]] = {
    "frames of LSP": ("write(f'Content-Length: {len(text)}\\r\\n\\r\\n' + text)", "Content-Length"),
    "frames with two headers": (
        "write(f'Content-Type: application/vscode-jsonrpc\\r\\ncontent-length: {len(text)}\\r\\n\\r\\n' + text)",
        "Content-Length",
    ),
    "frames with line ends of Unix": ("write(f'Content-Length: {len(text)}\\n\\n{text}\\n')", "Content-Length"),
    "indented": ("write(json.dumps(message, indent=2) + '\\n')", "several lines"),
    "indented by a tab": ("write(json.dumps(message, indent='\\t') + '\\r\\n')", "several lines"),
    "indented with its version at the end": (
        "write(json.dumps(dict(reversed(message.items())), indent=4) + '\\n')",
        "several lines",
    ),
    "a line end within a text": (
        "write(text.replace(': \"', ': \"\\n') + '\\n')",
        "one line",
    ),
}


def server(script: str, method: str) -> StdioTarget:
    return StdioTarget(sys.executable, ("-c", _PROGRAM, sys.path[0], script, method))


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_a_listing_understands_it(name: str) -> None:
    listing = fetch_tools_blocking("srv", server(UNDERSTOOD[name], "all"), Limits(timeout_s=45))

    assert [tool.name for tool in listing.tools] == ["one"]


@pytest.mark.anyio
@pytest.mark.parametrize("name", UNDERSTOOD)
async def test_a_call_understands_it(name: str) -> None:
    (result,) = await called(server(UNDERSTOOD[name], "all"))

    assert texts(result) == "fine"


@pytest.mark.parametrize("method", ["all", "tools/list"])
@pytest.mark.parametrize("name", NAMED)
def test_a_listing_names_it_soon(name: str, method: str) -> None:
    script, word = NAMED[name]
    began = time.monotonic()

    with pytest.raises(ProtocolViolation, match=word):
        fetch_tools_blocking("srv", server(script, method), Limits(timeout_s=45, start_timeout_s=300))

    assert time.monotonic() - began < SOON_S


@pytest.mark.anyio
@pytest.mark.parametrize("name", NAMED)
async def test_a_call_names_it_soon(name: str) -> None:
    script, word = NAMED[name]
    began = time.monotonic()

    async with calling({"srv": server(script, "tools/call")}, tool_of("srv", "one")) as client:
        result = await client.call_tool("call_tool", {"tool_name": "srv:one"})

    assert time.monotonic() - began < SOON_S
    assert result.is_error
    assert word in text_of(result)
