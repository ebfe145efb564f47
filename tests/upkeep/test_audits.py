"""Sweeps find a wrong count in the index of every engine, except while the model changes."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from query.records import Ledger
from shared.catalog import ENCODINGS, FORMS, Encoding, Form, Scope
from shared.index.points import any_of, must
from shared.index.versions import tools_spec
from tests.support.builders import definition, listing, up
from tests.support.index_versions import (
    ENGINES,
    NEW,
    OLD,
    Catalogue,
    active_version,
    catalogue,
    maintain_index,
    migrate,
    reconcile_all,
    request_own_model,
    store_of,
)
from workers.dependencies import Dependencies
from workers.upkeep.audit import differences
from workers.upkeep.migrate import MIGRATION_LEASE
from workers.work import Work

pytestmark = pytest.mark.process


@pytest.fixture(params=ENGINES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Catalogue]:
    """A catalogue of two servers, whose index is complete."""
    with catalogue(str(request.param), tmp_path) as shop:
        shop.world.servers = {
            "files": listing(definition("read_file"), definition("write_file")),
            "clock": listing(definition("get_time")),
        }
        deps = shop.worker(OLD)
        for server_id in shop.world.servers:
            shop.intents.record(up(server_id), due_in_s=0)
        reconcile_all(deps)
        store_of(deps).mark_complete(is_filled=True)
        yield shop


def tamper(shop: Catalogue, deps: Dependencies, key: str = "token_estimate") -> None:
    """Add 10,000 to a stored count, below the index."""
    collection = shop.engine.collection(tools_spec(active_version(deps).version))
    where = must(any_of("names", ("files:read_file",)))
    ((stored,), _) = collection.scroll(where, 1)
    collection.set_payload({key: stored[key] + 10_000}, where)


def totals(deps: Dependencies) -> dict[tuple[Encoding, Form], int]:
    index = active_version(deps).index
    return {
        (encoding, form): index.token_sum(Scope(), encoding, form).tokens for encoding in ENCODINGS for form in FORMS
    }


def differing(logs: list[EventDict]) -> list[str]:
    return sorted({str(line["server"]) for line in logs if line["event"] == "counts_differ"})


def test_sweeps_find_a_wrong_count_and_the_next_reconciliation_repairs_it(shop: Catalogue) -> None:
    deps = shop.worker(OLD)
    shop.intents.mark_complete()
    asked = list[str]()
    stores = lambda: shop.intents, lambda: deps
    work = Work(*stores, asked.append, lambda: 0, message_time_s=60.0, sweep_interval_s=1.0)
    before = totals(deps)
    tamper(shop, deps)
    assert totals(deps) != before

    with capture_logs() as logs:
        for _ in shop.world.servers:
            work.sweep()
            work.maintain()
    reconcile_all(deps)

    assert differing(logs) == ["files"]
    assert totals(deps) == before
    ledger = Ledger(active_version(deps).index)
    assert {(encoding, "wire"): ledger.baseline(Scope(), encoding).tokens for encoding in ENCODINGS} == {
        key: tokens for key, tokens in before.items() if key[1] == "wire"
    }


def test_no_server_is_audited_while_the_model_changes(shop: Catalogue) -> None:
    deps = shop.worker(NEW)
    request_own_model(deps)
    tamper(shop, deps)

    with capture_logs() as during, shop.intents.lease(MIGRATION_LEASE):  # nothing is switched
        for _ in range(4):
            maintain_index(deps)
    migrate(deps, lambda _: None)
    reconcile_all(deps)
    with capture_logs() as after:
        for _ in range(40):
            maintain_index(deps)
    reconcile_all(deps)

    assert (differing(during), differing(after)) == ([], ["files"])
    index = active_version(deps).index
    assert [differences(server_id, index) for server_id in shop.world.servers] == [[], []]
