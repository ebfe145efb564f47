"""Reasons why the program of a stdio server cannot be started, each with its repair."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

_SIMILAR = 0.6


class ProgramProblem(NamedTuple):
    """A reason and its repair."""

    reason: str
    repair: str


def start_problem(error: OSError) -> str:
    """Return the reason for a failed start of a program, and the repair."""
    if isinstance(error.filename, str) and error.errno in (errno.ENOENT, errno.EACCES):
        return "; ".join(program_problem(error.filename))
    return error.strerror or type(error).__name__


def program_problem(name: str, path: str | None = None) -> ProgramProblem:
    """Return why this program cannot be started, with similar names on `path`, by default this process's PATH."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    first, _, arguments = name.partition(" ")
    if arguments and shutil.which(first, path=path):
        return ProgramProblem(f"there is no program {name!r}", f"write {first!r} as `command`, and the rest as `args`")
    if Path(name).exists() and not os.access(name, os.X_OK):
        return ProgramProblem(f"{name} is not executable", f"run `chmod +x {name}`, or name its interpreter")
    if Path(name).is_file():
        return ProgramProblem(f"{name} cannot be started", "install the interpreter in its first line")
    if os.sep in name:
        return ProgramProblem(f"{name} does not exist", "install it, or correct the path")
    similar = get_close_matches(name, sorted(set(_programs(path)) - {name}), n=2, cutoff=_SIMILAR)
    repair = f"did you mean {' or '.join(similar)}?" if similar else "install it, or write its absolute path"
    return ProgramProblem(f"there is no program {name!r} in its PATH", repair)


def _programs(path: str) -> Iterator[str]:
    for directory in os.get_exec_path({"PATH": path}):
        try:
            with os.scandir(directory) as entries:
                yield from (entry.name for entry in entries if os.access(entry, os.X_OK) and not entry.is_dir())
        except OSError:  # PATH often names missing directories
            continue
