from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import structlog

from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from tests.support.waiting import eventually
from tests.support.watched import watching
from workers.sources.announcer import Running
from workers.sources.watcher import SourceUnavailable


class Breaking:
    """A source whose stream breaks when the test lets it; `listener` is the thread that reads it."""

    name = "test"

    def __init__(self) -> None:
        self.breaks = threading.Event()
        self.listener: threading.Thread | None = None

    def running(self) -> list[Running]:
        return []

    def changes(self) -> Iterator[object]:
        self.listener = threading.current_thread()
        yield None
        assert self.breaks.wait(60)
        raise SourceUnavailable("the stream broke")


def test_a_stream_that_breaks_after_the_end_of_its_watcher_is_not_logged(tmp_path: Path) -> None:
    source = Breaking()
    with (
        structlog.testing.capture_logs() as logs,
        closing(Intents(SqliteStorage(tmp_path / "intents"), RetryPolicy(1, 1))) as intents,
    ):
        with watching(source, intents):
            eventually(lambda: source.listener)
        assert source.listener
        source.breaks.set()
        source.listener.join(60)

    assert [log["event"] for log in logs] == []
