"""A conforming server behaves behind a toolset of Toolscale as it does alone, by the public suite of MCP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from tests.clients.marks import with_node
from tests.conformance.expected import FAILED, OPTIONAL, checks_of
from tests.conformance.shim import COMPLETE, linked, prefixed, renamed
from tests.conformance.suite import HANDSHAKE, STATELESS, Outcome, Suite
from tests.e2e.test_serve import ask, serving
from tests.support.conforming_server import PROGRAM, PROMPTS, TOOLS
from tests.support.warm import run, start

pytestmark = [pytest.mark.process, pytest.mark.index, *with_node(needs_node=True)]

SERVER = "conforming"


@pytest.fixture(scope="module")
def upstream() -> Generator[str]:
    """The URL of the conforming server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = start([sys.executable, str(PROGRAM), str(listener.fileno())], pass_fds=[listener.fileno()])
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    try:
        yield url
    finally:
        process.kill()
        process.wait(60)


@pytest.fixture(scope="module")
def toolset(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The URL of the server behind a toolset that has all of its tools, by the names of the server."""
    config = tmp_path_factory.mktemp("serve") / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {SERVER: {"type": "http", "url": upstream}}}))
    with serving(config) as (_, url):
        ask(url)
        command = [sys.executable, "-m", "toolscale", "toolset", "create", "all", SERVER, "--url", url]
        created: subprocess.CompletedProcess[str] = run(command)
        assert created.returncode == 0, created.stderr
        kinds = (
            prefixed(TOOLS, SERVER, ("tools/call",), "tools"),
            prefixed(PROMPTS, SERVER, ("prompts/get", COMPLETE), "prompts"),
            *anyio.run(linked, upstream, f"{url}/all"),
        )
        with renamed(f"{url}/all", kinds) as shown:
            yield shown


@pytest.fixture(scope="module", params=[pytest.param(HANDSHAKE, marks=pytest.mark.slow), STATELESS])
def revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def alone(suite: Suite, upstream: str, revision: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return suite.server(upstream, revision, tmp_path_factory.mktemp("alone"))


def test_the_server_alone_passes_every_check(alone: Outcome) -> None:
    assert alone.others == {}
    assert len(alone.passed) > 50


def test_behind_a_toolset_it_passes_every_check_but_those_listed(
    suite: Suite, toolset: str, alone: Outcome, revision: str, tmp_path: Path
) -> None:
    behind = suite.server(toolset, revision, tmp_path)

    failed, optional = checks_of(FAILED, revision), checks_of(OPTIONAL, revision)
    lost = {check: behind.others.get(check, "not made") for check in {*(alone.passed - behind.passed), *behind.others}}
    unlisted = [
        f"{check}: {why}"
        for check, why in sorted(lost.items())
        if check not in failed and (check not in optional or why.startswith("FAILURE"))
    ]
    assert not unlisted, "checks that fail, and are not listed:\n" + "\n".join(unlisted)
    passing = sorted((failed | optional) - lost.keys())
    assert not passing, "checks that pass, and are listed:\n" + "\n".join(passing)
