"""The catalogue's size is stored by day while a service runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from datetime import date
from pathlib import Path

import pytest
import structlog

from query.records import Ledger
from query.usage.record import sampling
from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import CatalogueSize, today
from shared.catalog import ServerRecord, Status
from shared.errors import HistoryUnavailable
from tests.support.fakes import FakeIndex, make_tool
from tests.support.filled import record_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("noon")


class CountingUsage(SqliteUsage):
    """Usage that remembers the stored sizes, and takes none while it `is_down`."""

    stored: list[CatalogueSize]
    is_down = False

    def put_size(self, day: date, size: CatalogueSize) -> None:
        if self.is_down:
            raise HistoryUnavailable("the store is down")
        super().put_size(day, size)
        self.stored.append(size)


@pytest.fixture
def usage(tmp_path: Path) -> Generator[CountingUsage]:
    with closing(CountingUsage(tmp_path / "savings.sqlite3", keep_days=30)) as opened:
        opened.stored = []
        yield opened


@pytest.fixture
def index() -> FakeIndex:
    made = FakeIndex()
    made.put_server(record("a", 10, 1))
    made.put_server(record("b", 20, 2))
    return made


def record(server_id: str, tokens: int, revision: int, status: Status = "running") -> ServerRecord:
    """Return the record of a server with a tool of so many tokens in the model form, and twice as many on the wire."""
    tool = make_tool(server_id, tokens=2 * tokens, model_tokens=tokens, status=status)
    return record_of(server_id, [tool], revision=revision)


def test_a_size_is_stored_when_it_changes_and_once_more_at_the_end(index: FakeIndex, usage: CountingUsage) -> None:
    ledger = Ledger(index)
    with sampling(usage, ledger, "cl100k_base", every_s=0.01):
        eventually(lambda: usage.stored, what="the first sample")
        index.put_server(record("b", 25, 3))
        eventually(lambda: len(usage.stored) == 2, what="the sample after a change")
    with sampling(usage, ledger, "cl100k_base", every_s=3_600):
        eventually(lambda: len(usage.stored) == 3, what="the first sample of another process")
        index.put_server(record("a", 15, 4))

    assert usage.stored == [CatalogueSize(2, 2, tokens) for tokens in (30, 35, 35, 40)]
    assert usage.sizes(today(), today()) == {today(): CatalogueSize(2, 2, 40)}


@pytest.mark.parametrize("status", ["stopped", "quarantined"])
def test_a_server_that_cannot_be_found_costs_nothing(index: FakeIndex, usage: CountingUsage, status: Status) -> None:
    index.put_server(record("b", 20, 3, status))

    with sampling(usage, Ledger(index), "cl100k_base"):
        pass

    assert usage.stored[-1] == CatalogueSize(1, 1, 10)


def test_a_store_that_is_down_is_logged_once_and_the_next_sample_is_stored(
    index: FakeIndex, usage: CountingUsage
) -> None:
    usage.is_down = True
    with (
        structlog.testing.capture_logs() as lines,
        sampling(usage, Ledger(index), "cl100k_base", every_s=0.01),
    ):
        eventually(lambda: lines, what="the line")
        usage.is_down = False
        eventually(lambda: usage.stored, what="the sample")

    assert [line["event"] for line in lines] == ["catalogue_size_not_stored"]
