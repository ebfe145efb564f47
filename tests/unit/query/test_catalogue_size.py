"""How large the catalogue is, is kept by day: what changed, and what can be found no more."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest
import structlog
import time_machine

from query.catalogue import Catalogue
from query.history.periods import today
from query.history.recorder import UsageRecorder
from query.history.sqlite_store import SqliteHistory
from query.history.store import ServerSize
from query.records import Ledger
from query.reports.catalogue_size import CatalogueSampler, sampling
from shared.catalog import FEATURES_VERSION, Endpoint, ServerRecord, Status
from shared.errors import HistoryUnavailable
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("noon")


class CountingHistory(SqliteHistory):
    """A history that remembers which servers' sizes were written, and takes none while it `is_down`."""

    written: list[list[str]]
    is_down = False

    def store_sizes(self, day: date, sizes: Mapping[str, ServerSize]) -> None:
        if self.is_down:
            raise HistoryUnavailable("the history is down")
        self.written.append(sorted(sizes))
        super().store_sizes(day, sizes)


@pytest.fixture
def history(tmp_path: Path) -> Generator[CountingHistory]:
    with closing(CountingHistory(tmp_path / "savings.sqlite3", keep_days=30)) as opened:
        opened.written = []
        yield opened


@pytest.fixture
def index() -> FakeIndex:
    made = FakeIndex()
    made.put_server(record("a", 10, 1))
    made.put_server(record("b", 20, 2))
    return made


def record(server_id: str, tokens: int, revision: int, status: Status = "running") -> ServerRecord:
    """Return the record of a server with a tool of so many tokens in the model form, and twice as many on the wire."""
    return ServerRecord(
        features_version=FEATURES_VERSION, last_listed_at=1.0, server_id=server_id, endpoint=Endpoint(), status=status,
        tool_count=1, tokens={"cl100k_base": 2 * tokens}, model_tokens={"cl100k_base": tokens}, revision=revision,
    )  # fmt: skip


def of_today(history: SqliteHistory) -> Mapping[str, ServerSize]:
    return history.sizes(today(), today())[today()]


def test_a_look_keeps_what_each_server_costs_and_the_next_one_what_changed(
    index: FakeIndex, history: CountingHistory
) -> None:
    observer = CatalogueSampler(Ledger(index), history, "cl100k_base")

    observer.sample()
    observer.sample()
    index.put_server(record("b", 25, 3))
    observer.sample()

    assert history.written == [["a", "b"], ["b"]]
    assert of_today(history) == {"a": ServerSize(1, 10), "b": ServerSize(1, 25)}


@pytest.mark.parametrize("status", ["stopped", "quarantined"])
def test_a_server_that_cannot_be_found_costs_nothing(
    index: FakeIndex, history: CountingHistory, status: Status
) -> None:
    CatalogueSampler(Ledger(index), history, "cl100k_base").sample()

    index.put_server(record("b", 20, 3, status))
    CatalogueSampler(Ledger(index), history, "cl100k_base").sample()  # as after a restart

    assert of_today(history) == {"a": ServerSize(1, 10), "b": ServerSize(0, 0)}


def test_a_new_day_begins_with_all_servers(index: FakeIndex, history: CountingHistory) -> None:
    observer = CatalogueSampler(Ledger(index), history, "cl100k_base")
    tomorrow = today() + timedelta(days=1)

    observer.sample()
    with time_machine.travel(tomorrow, tick=True):
        observer.sample()

    assert history.sizes(tomorrow, tomorrow)[tomorrow].keys() == {"a", "b"}


def test_what_could_not_be_kept_is_kept_by_the_next_look(index: FakeIndex, history: CountingHistory) -> None:
    observer = CatalogueSampler(Ledger(index), history, "cl100k_base")
    history.is_down = True
    with pytest.raises(HistoryUnavailable):
        observer.sample()
    history.is_down = False

    observer.sample()

    assert of_today(history).keys() == {"a", "b"}


def test_the_service_keeps_looking_and_looks_once_more_at_its_end(index: FakeIndex, history: CountingHistory) -> None:
    with closing(UsageRecorder(history)) as recorder:
        catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), recorder=recorder)
        with sampling(catalogue, every_s=3_600):
            eventually(lambda: history.written, what="the first look")
            index.put_server(record("a", 15, 3))

    assert of_today(history)["a"] == ServerSize(1, 15)


def test_a_history_that_is_down_is_said_once(index: FakeIndex, history: CountingHistory) -> None:
    history.is_down = True
    with structlog.testing.capture_logs() as lines, closing(UsageRecorder(history)) as recorder:
        catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), recorder=recorder)
        with sampling(catalogue, every_s=0.01):
            eventually(lambda: len(lines) >= 1, what="the line")

    assert [line["event"] for line in lines] == ["catalogue_size_not_stored"]


def test_without_a_history_nothing_is_looked_at(index: FakeIndex) -> None:
    index.is_down = True

    with structlog.testing.capture_logs() as lines, sampling(Catalogue(index, FakeEmbedder(), Ledger(index))):
        pass

    assert lines == []
