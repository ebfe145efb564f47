"""A repeated call outlives whatever it raises, and each kind of error is logged once."""

from __future__ import annotations

import threading
from itertools import chain, repeat

import structlog
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigInvalid, IndexUnavailable
from shared.service.every import every


class Panic(BaseException):
    """An error as native libraries raise it, which is no Exception."""


ERRORS = (IndexUnavailable, ConfigInvalid, RecursionError, MemoryError, KeyError, SystemExit, KeyboardInterrupt, Panic)


@given(st.lists(st.sampled_from([None, *ERRORS]), max_size=12))
def test_whatever_a_call_raises_it_is_called_again_and_the_error_is_logged_once_a_kind(
    raised: list[type[BaseException] | None],
) -> None:
    outcomes, done = chain(raised, repeat(None)), threading.Event()
    calls: list[None] = []

    def call() -> None:
        calls.append(None)
        if len(calls) > len(raised):
            done.set()
        if kind := next(outcomes):
            raise kind("away")

    with structlog.testing.capture_logs() as lines, every(0.0, call, "sweep_failed", server="s"):
        assert done.wait(60)

    kinds = list(dict.fromkeys(kind.__name__ for kind in raised if kind))
    assert [(line["event"], line["kind"], line["server"]) for line in lines] == [
        ("sweep_failed", kind, "s") for kind in kinds
    ]
