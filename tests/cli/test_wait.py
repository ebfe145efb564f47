"""Waiting for reconciliations, and the report of the first listings, with real servers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from query.catalogue import catalogue_of
from shared.events import ServerAnnouncement
from shared.intents import times
from shared.settings import Settings, load_settings
from shared.upstream.mcp_json import Config
from shared.upstream.target import HttpTarget
from tests.support.builders import changed
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import scripted_http
from tests.support.waiting import eventually
from toolscale.client.wait import patience_s, wait_for
from toolscale.embedded.composition import Embedded, run_embedded
from toolscale.embedded.startup_progress import report_startup

pytestmark = pytest.mark.process


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("REDIS_URL", "QDRANT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shared.intents.intents.MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(times, "REDELIVER_AFTER_S", 0.5)
    return load_settings(data_dir=tmp_path)


def announce(embedded: Embedded, **urls: str) -> None:
    targets = {name: HttpTarget(url) for name, url in urls.items()}
    announcements = tuple(ServerAnnouncement(server_id=name, url=url) for name, url in urls.items())
    embedded.announce(Config(announcements=announcements, targets=targets))


def test_a_wait_returns_the_result_of_each_requested_reconciliation(settings: Settings) -> None:
    with (
        scripted_http(lambda exchange: exchange.play(one_page(tool("a")))) as server,
        run_embedded(settings) as embedded,
    ):
        announce(embedded, good=server.url, gone="http://127.0.0.1:9/mcp")
        eventually(lambda: all(intent.failures or intent.listed_at for intent in embedded.deps.intents.intents()))

        intents = embedded.deps.intents
        recorded = [embedded.emit(changed(server_id)) for server_id in ("good", "gone")]
        results = wait_for(intents.existing, recorded, patience_s(settings), threading.Event())
        ended = {result.emitted.server_id: result for result in results}

    assert ended["good"].result == "listed"
    assert ended["gone"].result == "failed"
    assert ended["gone"].error


def test_the_startup_report_counts_listed_servers_and_names_failed_ones(settings: Settings) -> None:
    said: list[str] = []
    with (
        scripted_http(lambda exchange: exchange.play(one_page(tool("a"), tool("b")))) as server,
        run_embedded(settings) as embedded,
    ):
        announce(embedded, good=server.url, gone="http://127.0.0.1:9/mcp")
        catalogue = catalogue_of(embedded.deps.index, embedded.deps.embedder, settings)

        with report_startup(embedded, catalogue, said.append):
            eventually(lambda: len(said) == 2, what="the summary")

    assert said[0].startswith("Listed 1 of 2 servers: 2 tools, of ")
    assert said[1].startswith("  gone: failed: ")


def test_the_startup_report_includes_listings_that_ended_before_it_began(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    for name in ("REDELIVER_AFTER_S", "RETRY_MAX_S"):
        monkeypatch.setattr(times, name, 3_600.0)
    with (
        scripted_http(lambda exchange: exchange.play(one_page(tool("a"), tool("b")))) as server,
        run_embedded(settings) as embedded,
    ):
        announce(embedded, good=server.url, gone="http://127.0.0.1:9/mcp")
        eventually(lambda: all(intent.failures or intent.listed_at for intent in embedded.deps.intents.intents()))
        catalogue = catalogue_of(embedded.deps.index, embedded.deps.embedder, settings)

        with report_startup(embedded, catalogue, said.append):
            eventually(lambda: len(said) == 2, what="the summary")

    assert said[0].startswith("Listed 1 of 2 servers: 2 tools, of ")
    assert said[1].startswith("  gone: failed: ")
