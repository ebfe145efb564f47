"""Runs a program with other constants: `python -m tests.support.brisk module.NAME=2.5 -- celery -A workers.app worker`.

The times of the product are constants. A test of real processes cannot wait for them, so each is set in its module
before the program runs, in this process, as `python -m` would run it.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Mapping, Sequence

TIMES = "shared.intents.times"


def brisk(constants: Mapping[str, float], program: Sequence[str]) -> list[str]:
    """Return the arguments of an interpreter that runs the module `program[0]` with these constants."""
    given = [f"{name}={value!r}" for name, value in constants.items()]
    return ["-m", __name__, *given, "--", *program] if given else ["-m", *program]


def main(arguments: Sequence[str]) -> None:
    """Set the constants, and run the module after `--` with the arguments behind it."""
    end = arguments.index("--")
    for argument in arguments[:end]:
        name, _, value = argument.partition("=")
        module_name, _, constant = name.rpartition(".")
        module = importlib.import_module(module_name)
        before: float = getattr(module, constant)  # an unknown name fails
        setattr(module, constant, type(before)(value))
    program, *sys.argv[1:] = arguments[end + 1 :]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
