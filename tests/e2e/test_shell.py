"""The command as shells and terminals meet it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLSCALE = str(Path(sys.executable).with_name("toolscale"))
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")


def said(directory: Path, *arguments: str, **environment: str) -> str:
    known = {"TOOLSCALE_DATA_DIR": str(directory), "REDIS_URL": "", "FORCE_COLOR": "", "NO_COLOR": "", **environment}
    kept = {name: value for name, value in {**os.environ, **known}.items() if value}
    done = subprocess.run([TOOLSCALE, *arguments], env=kept, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("toolscale do", ["doctor"]), ("toolscale emit d", ["down"]), ("toolscale ls --j", ["--json"])],
)
def test_bash_completes_commands_and_options(tmp_path: Path, typed: str, completed: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}

    assert said(tmp_path, _TOOLSCALE_COMPLETE="complete_bash", **words).split() == completed


def test_bash_completes_the_ids_of_announced_servers(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "toolscale show f", "COMP_CWORD": "2"}
    before = said(tmp_path / "none", _TOOLSCALE_COMPLETE="complete_bash", **words)
    for server in ("files", "git"):
        said(tmp_path, "emit", "up", server, "--url", "http://127.0.0.1:1/mcp")

    assert said(tmp_path, _TOOLSCALE_COMPLETE="complete_bash", **words).split() == ["files"]
    assert before.split() == []
    assert not (tmp_path / "none").exists()


def test_colours_are_for_terminals_and_not_for_those_who_want_none(tmp_path: Path) -> None:
    piped = said(tmp_path, "doctor")
    terminal = said(tmp_path, "doctor", FORCE_COLOR="1")
    unwanted = said(tmp_path, "doctor", FORCE_COLOR="1", NO_COLOR="1")

    assert "\x1b" not in piped
    assert COLOUR.search(terminal)
    assert not COLOUR.search(unwanted)
