"""The tasks over the demo's servers: each with a request, its check, and a solution, which only the script reads."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

FILE = Path(__file__).with_name("tasks.jsonl")
FIRST_FILES = {
    "files/list.txt": "soap\noat milk\nstring\n",
    "files/draft.txt": "A first draft\n",
    "files/archive/prices-2031.csv": "item,price\n",
    "repository/plan.md": "By train\n",
    "memory.jsonl": '{"type":"entity","name":"ferry","entityType":"boat","observations":["leaves at 07:40"]}\n',
}


class Step(BaseModel):
    """A call of a solution, and what the script searches for to find its tool."""

    model_config = ConfigDict(frozen=True)

    search: str
    tool: str
    arguments: dict[str, Any]


class Task(BaseModel):
    """A task; it is done if `wanted`, a regular expression, is in the state that it left, or else in the answer.

    `state` names what is read: `{"file": path}`, `{"git": arguments}` or `{"sql": query}`.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    request: str
    wanted: str
    state: Mapping[str, str | list[str]] = {}
    steps: tuple[Step, ...]

    @property
    def servers(self) -> set[str]:
        """Return the ids of the servers of its solution."""
        return {step.tool.partition(":")[0] for step in self.steps}

    def observed(self, scratch: Path, answer: str) -> str:
        """Return what the check reads, in the working directory of the servers."""
        if not self.state:
            return answer
        return "".join(_READERS[kind](scratch, value) for kind, value in self.state.items())

    def is_done(self, observed: str) -> bool:
        """Return whether this is what was wanted."""
        return re.search(self.wanted, observed) is not None


def read_tasks(scratch: Path) -> list[Task]:
    """Return the tasks, with `{scratch}` replaced by the working directory of the servers."""
    lines = FILE.read_text(encoding="utf-8").replace("{scratch}", str(scratch)).splitlines()
    return [Task.model_validate_json(line) for line in lines]


def prepare(scratch: Path) -> None:
    """Make the state that each task begins with; what was in the directory is gone."""
    scratch.mkdir(exist_ok=True)
    for entry in scratch.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name, text in FIRST_FILES.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with closing(sqlite3.connect(scratch / "notes.db")) as database:
        database.execute("CREATE TABLE books (title TEXT, year INTEGER)")
        database.executemany("INSERT INTO books VALUES (?, ?)", [("Middlemarch", 1871), ("Emma", 1815)])
        database.commit()
    _git(scratch, ["init", "--quiet"])
    _git(scratch, ["config", "user.name", "Ada Brook"])
    _git(scratch, ["config", "user.email", "ada@example.org"])
    _git(scratch, ["add", "plan.md"])
    _git(scratch, ["commit", "--quiet", "-m", "Plan the harvest feast"])
    (scratch / "repository" / "plan.md").write_text("By ferry\n", encoding="utf-8")


def _file(scratch: Path, name: str) -> str:
    path = scratch / name
    return path.read_bytes().decode(errors="replace") if path.is_file() else ""


def _git(scratch: Path, arguments: list[str]) -> str:
    asked = ["git", "-C", str(scratch / "repository"), *arguments]
    ran = subprocess.run(asked, check=False, capture_output=True, text=True)
    return ran.stdout or ran.stderr


def _sql(scratch: Path, query: str) -> str:
    with closing(sqlite3.connect(scratch / "notes.db")) as database:
        try:
            return json.dumps(database.execute(query).fetchall())
        except sqlite3.Error as error:
            return str(error)


_READERS: dict[str, Any] = {"file": _file, "git": _git, "sql": _sql}
