"""The command as shells and terminals meet it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from shared.intents.intents import open_intents
from shared.settings import load_settings
from tests.support import warm
from tests.support.hostile.processes import good_stdio
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TOOLSCALE = str(Path(sys.executable).with_name("toolscale"))
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")


def environment_of(directory: Path, **environment: str) -> dict[str, str]:
    unset = dict.fromkeys(("REDIS_URL", "QDRANT_URL", "FORCE_COLOR", "NO_COLOR", "COLUMNS", "TOOLSCALE_LOG_LEVEL"), "")
    known = {**os.environ, **unset, "TOOLSCALE_DATA_DIR": str(directory), **environment}
    return {name: value for name, value in known.items() if value}


def run(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command, known = [TOOLSCALE, *arguments], environment_of(directory, **environment)
    return warm.run(command, env=known)


def said(directory: Path, *arguments: str, **environment: str) -> str:
    return run(directory, *arguments, **environment).stdout


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("toolscale do", ["doctor"]), ("toolscale emit d", ["down"]), ("toolscale ls --j", ["--json"])],
)
def test_bash_completes_commands_and_options(tmp_path: Path, typed: str, completed: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}

    assert said(tmp_path, _TOOLSCALE_COMPLETE="complete_bash", **words).split() == completed


@pytest.mark.parametrize("typed", ["toolscale show f", "toolscale resync f", "toolscale find a file --server f"])
def test_bash_completes_the_ids_of_announced_servers(tmp_path: Path, typed: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    before = said(tmp_path / "none", _TOOLSCALE_COMPLETE="complete_bash", **words)
    for server in ("files", "git"):
        said(tmp_path, "emit", "up", server, "--url", "http://127.0.0.1:1/mcp")

    assert said(tmp_path, _TOOLSCALE_COMPLETE="complete_bash", **words).split() == ["files"]
    assert before.split() == []
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_colours_are_for_terminals_without_no_color(tmp_path: Path) -> None:
    piped = said(tmp_path, "doctor")
    terminal = said(tmp_path, "doctor", FORCE_COLOR="1")
    unwanted = said(tmp_path, "doctor", FORCE_COLOR="1", NO_COLOR="1")

    assert "\x1b" not in piped
    assert COLOUR.search(terminal)
    assert not COLOUR.search(unwanted)


def test_a_row_of_a_table_is_one_line_in_a_pipe_and_as_wide_as_columns_elsewhere(tmp_path: Path) -> None:
    server = "a-server-of-the-finance-department-that-has-a-long-name"
    said(tmp_path, "emit", "up", server, "--url", "http://127.0.0.1:1/mcp")

    piped = said(tmp_path, "ls").splitlines()
    narrow = said(tmp_path, "ls", COLUMNS="60").splitlines()

    assert piped[1].split()[0] == server
    # the lines below the table name the problem of a server, and are not wrapped
    assert max(len(line) for line in narrow if line.startswith(" ")) <= 60


def test_a_rejected_event_is_reported_in_one_line_below_the_cure(tmp_path: Path) -> None:
    done = run(tmp_path, "emit", "up", "a:b", "--url", "http://127.0.0.1:1/mcp", "--json")

    assert (done.returncode, done.stdout) == (2, "")
    cure, error = done.stderr.splitlines()
    assert "emit --help" in cure
    assert error.startswith("error: data.server_id: ")


@pytest.mark.parametrize("command", ["ls", "resync", "savings", "dead-letters", "emit down x"])
def test_a_failure_is_a_line_on_stderr_and_no_document_on_stdout(tmp_path: Path, command: str) -> None:
    done = run(tmp_path, *command.split(), "--json", REDIS_URL=f"redis://127.0.0.1:{free_port()}/0")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@contextmanager
def waiting(directory: Path, *command: str) -> Generator[subprocess.Popen[str]]:
    """Run a command that waits for a reconciliation without a worker; the end of the block stops it."""
    said(directory, "emit", "up", "docs", "--url", "http://127.0.0.1:1/mcp")
    pipe, known = subprocess.PIPE, environment_of(directory)
    with subprocess.Popen(command, env=known, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_interrupted_wait_prints_no_traceback(tmp_path: Path) -> None:
    with (
        waiting(tmp_path, TOOLSCALE, "resync", "--wait") as process,
        closing(open_intents(load_settings(data_dir=tmp_path))) as intents,
    ):
        eventually(lambda: [intent.desired for intent in intents.intents()] == [2], what="the resync")

        process.send_signal(signal.SIGINT)

        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


@pytest.mark.slow
def test_a_service_on_a_terminal_prints_sentences_and_logs_only_warnings(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    good = good_stdio()
    config.write_text(json.dumps({"mcpServers": {"good": {"command": good.command, "args": list(good.args)}}}))
    terminal, end = os.openpty()
    command = [TOOLSCALE, "serve", "--config", str(config), "--port", "0"]
    serving = subprocess.Popen(command, env=environment_of(tmp_path, TERM="dumb"), stdout=end, stderr=end)
    os.close(end)
    try:
        text = _read_until(terminal, "are searchable")
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(60)
        os.close(terminal)

    assert "Toolscale answers at http://127.0.0.1:" in text
    assert "Listed 1 of 1 servers: 250 tools, of " in text
    assert not re.search("event_recorded|server_indexed|Task toolscale", text)
    assert serving.returncode == 0


def _read_until(terminal: int, words: str) -> str:
    text, deadline = "", time.monotonic() + 90
    while words not in text and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1.0)[0]:
            text += os.read(terminal, 65_536).decode()
    return text
