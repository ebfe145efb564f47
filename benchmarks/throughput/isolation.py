"""Run a measurement in a new process, without memory of earlier runs."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from shared.service.logging import configure_logging
from tests.support.qdrant_server import emptied_qdrant

P = ParamSpec("P")
T = TypeVar("T")


def in_fresh_process(measure: Callable[Concatenate[Path, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `measure` returns, called in a new process with an empty directory as its first argument.

    A Qdrant server at QDRANT_URL must be empty, and is emptied at the end.
    """
    spawn = multiprocessing.get_context("spawn")
    with (
        emptied_qdrant(),
        tempfile.TemporaryDirectory(prefix="toolscale-bench-") as directory,
        ProcessPoolExecutor(1, mp_context=spawn, initializer=configure_logging, initargs=("WARNING",)) as pool,
    ):
        return pool.submit(measure, Path(directory), *args, **kwargs).result()
