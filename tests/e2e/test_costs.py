"""`toolscale costs` as a person starts it: a real process and real servers; the counts equal an independent count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import Client

from benchmarks.recount_messages import recording
from benchmarks.recount_numbers import tokens_by_form, without_digest
from shared.upstream.target import StdioTarget
from tests.e2e.test_serve import serving
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.processes import good_http, good_stdio, scripted_stdio
from tests.support.hostile.scripted_http import scripted_http
from tests.support.hostile.scripts import plays
from tests.support.waiting import eventually
from tests.support.warm import run

pytestmark = pytest.mark.process

COMMAND = (sys.executable, "-m", "toolscale", "costs")
RICH: dict[str, Any] = {
    "title": "Écrire",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string", "enum": ["é", "日本", "<|endoftext|>"]}},
    },
    "name": "write",
    "description": "Writes “text” 🙂 and more",
    "outputSchema": {"type": "object", "properties": {"done": {"type": "boolean"}}},
    "annotations": {"readOnlyHint": False},
    "_meta": {"vendor": {"deep": [1, 2.5, None]}},
}


def entry(target: StdioTarget) -> dict[str, Any]:
    return {"command": target.command, "args": list(target.args)}


def environment_of(home: Path, **extra: str) -> dict[str, str]:
    unset = ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_MCP_CONFIG", "XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR")
    known = {"HOME": str(home), "TOOLSCALE_DATA_DIR": str(home / "data"), **dict.fromkeys(unset, "")}
    return {**os.environ, **known, **extra}


def costs(home: Path, servers: Mapping[str, object], *options: str, **extra: str) -> subprocess.CompletedProcess[str]:
    config = home / "servers.json"
    config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return run([*COMMAND, "--config", str(config), *options], env=environment_of(home, **extra), cwd=home)


def tools_sent_by(url: str) -> list[dict[str, Any]]:
    """Return the tools that a service sends to a client of the SDK, with their keys in the order of the wire."""

    async def list_once(proxied: str) -> None:
        async with Client(proxied, cache=None) as client:
            await client.list_tools()

    with recording(url.removesuffix("/mcp")) as recorder:
        anyio.run(list_once, f"{recorder.url}/mcp")
    (listed,) = [exchange for exchange in recorder.exchanges if exchange.method == "tools/list"]
    tools: list[dict[str, Any]] = listed.result["tools"]
    return tools


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
def test_the_counts_of_each_server_equal_an_independent_count(tmp_path: Path, encoding: str) -> None:
    scripted = [RICH, tool("plain")]
    with scripted_http(plays(one_page(*scripted))) as server:
        servers = {"rich": {"url": server.url}, "one": entry(scripted_stdio("good"))}
        done = costs(tmp_path, servers, "--json", "--encoding", encoding)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {server["server_id"]: server["tokens"] for server in report["servers"]} == {
        "rich": tokens_by_form(scripted, encoding),
        "one": tokens_by_form([tool("one")], encoding),
    }
    assert report["total"] == {"tools": 3, "tokens": tokens_by_form([*scripted, tool("one")], encoding), "uncounted": 0}
    assert (report["encoding"], report["estimated"]) == (encoding, False)
    assert not (tmp_path / "data").exists()


def test_the_counts_of_toolscale_itself_equal_a_recount_of_its_list(tmp_path: Path) -> None:
    report = json.loads(costs(tmp_path, {"good": entry(good_stdio())}, "--json").stdout)
    with serving(tmp_path / "servers.json") as (_, url):
        own = list(map(without_digest, tools_sent_by(url)))

    assert report["servers"][0]["tools"] == 250
    assert report["toolscale"] == {"tools": len(own), "tokens": tokens_by_form(own), "uncounted": 0}


@pytest.mark.parametrize("kind", ["http", "legacy"])
def test_the_counts_of_a_server_of_the_sdk_equal_a_recount_of_its_list(
    tmp_path: Path, kind: Literal["http", "legacy"]
) -> None:
    with good_http(kind, program="callable") as target:
        report = json.loads(costs(tmp_path, {"callable": {"url": target.url}}, "--json").stdout)
        upstream = tools_sent_by(target.url)

    (server,) = report["servers"]
    assert (server["tools"], server["tokens"]) == (len(upstream), tokens_by_form(upstream))


def test_servers_that_fail_are_rows_with_their_reason(tmp_path: Path) -> None:
    servers = {
        "good": entry(scripted_stdio("good")),
        "mixed": entry(scripted_stdio("mixed")),
        "dead": entry(scripted_stdio("dies_at_start")),
        "missing": {"command": str(tmp_path / "no-such-program")},
        "off": {"command": "x", "disabled": True},
        "unset": {"command": "x", "env": {"KEY": "${NOT_SET_HERE}"}},
        "self": {"command": "toolscale", "args": ["serve", "--stdio"]},
    }
    done = costs(tmp_path, servers, "--json", "--partial-ok")

    assert done.returncode == 0, done.stderr
    assert costs(tmp_path, servers, "--json").returncode == 1
    rows = {server["server_id"]: server for server in json.loads(done.stdout)["servers"]}
    assert rows.keys() == servers.keys()
    assert rows["good"]["problem"] is None
    assert rows["mixed"]["tools"] == 4
    assert rows["mixed"]["problem"] == "rejected no_schema, and others: inputSchema: missing"
    assert [rows[name]["tokens"] for name in ("dead", "missing", "off", "unset", "self")] == [None] * 5
    assert "panic: out of cheese" in rows["dead"]["problem"]
    assert rows["off"]["problem"] == "it is disabled"
    assert rows["unset"]["problem"] == "the environment variable NOT_SET_HERE is not set"
    assert rows["self"]["problem"] == "it is Toolscale itself"


def test_without_any_listed_server_the_exit_code_is_1(tmp_path: Path) -> None:
    done = costs(tmp_path, {"dead": entry(scripted_stdio("dies_at_start"))})

    assert done.returncode == 1
    assert "out of cheese" in done.stdout
    assert f"Listing the servers of {tmp_path / 'servers.json'} ..." in done.stderr


def test_the_tables_fit_80_columns_and_a_sentence_compares_toolscale(tmp_path: Path) -> None:
    servers = {"sequential-thinking": entry(scripted_stdio("good")), "a" * 90: entry(scripted_stdio("dies_at_start"))}
    done = costs(tmp_path, servers, COLUMNS="80")

    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["server", "tools", "wire", "generic", "anthropic", "openai"]
    numbers = [str(count) for count in tokens_by_form([tool("one")]).values()]
    assert lines[1].split() == ["sequential-thinking", "1", *numbers]
    assert lines[2].split() == ["total", "1", *numbers]
    own = json.loads(costs(tmp_path, servers, "--json").stdout)["toolscale"]["tokens"]["generic"]
    sentence = f"Toolscale in their place lists 7 tools: {own:,} tokens against {numbers[1]}, "
    assert sentence in " ".join(done.stdout.split())


def test_an_interrupt_ends_the_servers_and_prints_nothing(tmp_path: Path) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    config = tmp_path / "servers.json"
    silent = {"command": sys.executable, "args": ["-c", program, str(tmp_path / "pid")]}
    config.write_text(json.dumps({"mcpServers": {f"silent-{number}": silent for number in range(20)}}))
    command = [*COMMAND, "--config", str(config), "--json"]
    with subprocess.Popen(
        command, env=environment_of(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        eventually(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text(), what="the server")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)

    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
