"""Every command on a console with few characters, and with an output that is closed or full: never a traceback."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.test_serve import ask, serving
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import scripted_http
from toolscale.app import COMMANDS

pytestmark = [pytest.mark.process, pytest.mark.slow]

TEXT = "liest \u00e9 \U0001f98a \u2014 \u201cna\u00efv\u201d \u202e \u03a9"
ARGUMENTS = {
    "serve": ("--config", f"/nowhere/{TEXT}.json"),
    "demo": ("--help",),
    "import": ("--from", "cursor"),
    "connect": ("cursor",),
    "add": (TEXT, "--url", "http://h/\u00e9"),
    "remove": (TEXT,),
    "login": ("srv",),
    "logout": ("srv",),
    "costs": ("--config", "mcp.json"),
    "lint": ("--server", "srv", "--config", "mcp.json"),
    "find": (TEXT,),
    "show": ("srv",),
    "describe": ("srv:lire",),
    "call": ("srv:lire", f"text={TEXT}"),
    "logs": ("srv",),
    "diff": ("srv",),
    "approve": ("srv",),
    "resync": ("srv",),
    "backup": ("backup",),
    "restore": ("backup",),
    "emit": ("up", TEXT, "--url", "http://h/\u00e9"),
    "token": ("new", TEXT),
    "toolset": ("--help",),
    "watch": ("--help",),
}
CONSOLES: dict[str, tuple[dict[str, str], str]] = {
    "ascii": ({"PYTHONIOENCODING": "ascii"}, ""),
    "strict latin-1": ({"PYTHONIOENCODING": "latin-1:strict"}, ""),
    "cp437": ({"PYTHONIOENCODING": "cp437", "COLUMNS": "40"}, ""),
    "C": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ""),
    "a full output": ({}, ">/dev/full"),
    "a closed pipe": ({}, "> >(exec <&-)"),
    "no output": ({}, ">&-"),
    "no errors": ({}, "2>&-"),
    "full errors": ({}, "2>/dev/full"),
    "nothing": ({}, ">&- 2>&-"),
}


@dataclass(frozen=True)
class Served:
    """A directory whose service has a tool with such a text."""

    directory: Path

    def run(self, command: str, redirected: str = "", **environment: str) -> tuple[int, str]:
        """Return the exit code of a command line, and what it printed."""
        words = [sys.executable, "-m", "toolscale", *shlex.split(command)]
        # as in a console: without a buffer, nothing is left to write at the end
        settings = {"TOOLSCALE_DATA_DIR": str(self.directory), "HOME": str(self.directory), "PYTHONUNBUFFERED": ""}
        ended = subprocess.run(
            ["bash", "-c", f"{shlex.join(words)} {redirected}"],
            cwd=self.directory,
            env={**os.environ, **settings, **environment},
            capture_output=True,
            timeout=120,
            check=False,
        )
        return ended.returncode, (ended.stdout + ended.stderr).decode("utf-8", "replace")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    directory = tmp_path_factory.mktemp("served")
    listed = tool("lire") | {"description": TEXT}
    with scripted_http(lambda exchange: exchange.play(one_page(listed))) as server:
        config = directory / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"srv": {"url": server.url}, TEXT: {"url": "x"}}}))
        with serving(config, TOOLSCALE_DATA_DIR=str(directory)) as (_, url):
            ask(url)
            yield Served(directory)


@pytest.mark.parametrize("console", CONSOLES)
def test_no_command_ends_with_a_traceback(served: Served, console: str) -> None:
    environment, redirected = CONSOLES[console]
    # every command on one console, and some on each
    numbers = {name: number for number, name in enumerate(CONSOLES)}
    for number, name in enumerate(COMMANDS):
        if name in ("find", "doctor", "ls") or number % len(CONSOLES) == numbers[console]:
            line = f"{name} {shlex.join(ARGUMENTS.get(name, ()))}"
            code, shown = served.run(line, redirected, **environment)

            assert "Traceback" not in shown, line
            assert "Exception ignored" not in shown, line
            assert code in (0, 1, 2), (line, shown)


def test_characters_that_a_console_has_not_are_replaced(served: Served) -> None:
    code, shown = served.run(f"find {shlex.quote(TEXT)}", PYTHONIOENCODING="ascii")

    assert code == 0
    assert "lire" in shown
    assert "liest ?" in shown


def test_a_full_output_is_an_error(served: Served) -> None:
    assert served.run("ls", ">/dev/full")[0] == 1
    assert "space" in served.run("ls --json", ">/dev/full")[1]


def test_full_errors_do_not_take_the_result(served: Served) -> None:
    code, shown = served.run("ls --json", "2>/dev/full")

    assert code == 0
    assert '"srv"' in shown
