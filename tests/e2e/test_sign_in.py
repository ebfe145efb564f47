"""Sign-in as a person does it: a real service, the real command, and a browser that agrees."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.test_serve import TOOLSCALE, serving
from tests.support.oauth_server import People, ProtectedServer, protected_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.process


@pytest.fixture
def server() -> Iterator[ProtectedServer]:
    """Run a server that needs a sign-in."""
    with protected_server(People(scopes=["read"])) as running:
        yield running


class Person:
    """Runs commands against a service at this URL; `said` is all that they and the service printed."""

    def __init__(self, url: str, data_dir: Path) -> None:
        own = {"TOOLSCALE_URL": url.removesuffix("/mcp"), "TOOLSCALE_DATA_DIR": str(data_dir)}
        self._environment = {**os.environ, **own}
        self.said = ""

    def runs(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        done = subprocess.run([TOOLSCALE, *words], env=self._environment, capture_output=True, text=True, timeout=120)
        self.said += done.stdout + done.stderr
        return done

    def state(self, server: str) -> Any:
        """Return the state of a server."""
        return json.loads(self.runs("show", server, "--json").stdout)["state"]

    def signs_in(self, server: str, name: str) -> None:
        """Sign in without a browser of this machine: agree elsewhere, and paste where that browser was sent."""
        command = [TOOLSCALE, "login", server, "--no-browser"]
        pipes: Any = {"env": self._environment, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as login:
            assert login.stdin
            assert login.stdout
            address = login.stdout.readline().strip()
            sent_to = httpx2.get(f"{address}&login_hint={name}").headers["location"]
            self.said += login.communicate(f"what?\n\n'{sent_to}'\n", timeout=120)[0]
        assert login.returncode == 0, self.said


def test_a_person_signs_in_once_and_uses_the_tools(tmp_path: Path, server: ProtectedServer) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"private": {"url": server.url}}}))

    with serving(config, TOOLSCALE_DATA_DIR=str(tmp_path / "data")) as (running, url):
        person = Person(url, tmp_path / "data")
        eventually(lambda: person.state("private") == "sign-in")
        assert "toolscale login private" in person.runs("ls").stdout
        assert "toolscale login private" in person.runs("doctor").stdout
        assert "sign-in" in person.runs("find", "who", "am", "I").stderr
        assert "toolscale login private" in person.runs("call", "private:whoami").stderr

        person.signs_in("private", "ann@example.org")
        eventually(lambda: person.state("private") == "listed")
        assert person.runs("call", "private:whoami").stdout.strip() == "ann@example.org"
        assert "private" in person.runs("sign-ins").stdout

        server.people.revoke("ann@example.org")
        refused = person.runs("call", "private:whoami")
        assert (refused.returncode, "/oauth/start/" in refused.stdout + refused.stderr) == (1, True)
        person.runs("resync", "private")
        eventually(lambda: person.state("private") == "sign-in")
        assert "private:whoami" in person.runs("find", "who", "am", "I").stdout  # searchable as stale

        person.signs_in("private", "bob@example.org")
        assert person.runs("call", "private:whoami").stdout.strip() == "bob@example.org"
        assert person.runs("logout", "private").returncode == 0
        assert person.runs("call", "private:whoami").returncode == 1
        eventually(lambda: person.state("private") == "sign-in")
        assert "Nobody" in person.runs("sign-ins").stdout
        running.stop()
        printed = person.said + running.output()

    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert len(server.people.log) >= 4
    assert not any(token in printed or token.encode() in stored for token in server.people.log)
