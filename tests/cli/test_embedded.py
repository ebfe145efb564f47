"""The embedded composition: a worker thread, Edge and the intents of one data directory, in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from query.app import http_app
from query.catalogue import catalogue_of
from query.listener import HttpListener
from query.mcp import build_server
from query.records import Ledger
from query.tools.registry import builtin_tools
from shared.catalog import ENCODINGS, FORMS, Encoding, Form, Scope
from shared.events import ServerAnnouncement, ServerUp
from shared.index.points import any_of, must
from shared.intents import times
from shared.intents.intents import open_intents
from shared.settings import Settings, load_settings
from shared.text.embedding import FastEmbedder
from shared.upstream.mcp_json import SOURCE, Config, EntryProblem
from shared.upstream.target import HttpTarget
from tests.support.builders import changed
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import ScriptedServer, scripted_http
from tests.support.hostile.scripts import hangs, on_tools_list
from tests.support.http_callers import http_client
from tests.support.waiting import eventually
from toolscale.embedded.composition import Embedded, run_embedded
from toolscale.embedded.service import running
from workers.dependencies import open_dependencies
from workers.work import ReconcilePool

pytestmark = pytest.mark.process


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.delenv("QDRANT_URL", raising=False)
    monkeypatch.setattr(times, "REDELIVER_AFTER_S", 0.5)
    return load_settings(data_dir=tmp_path, listing_timeout_s=50.0)


def config(**servers: ScriptedServer) -> Config:
    """Return the announcements of an mcp.json with these servers."""
    return Config(
        announcements=tuple(ServerAnnouncement(server_id=name, url=server.url) for name, server in servers.items()),
        targets={name: HttpTarget(server.url) for name, server in servers.items()},
    )


def serves(*names: str) -> Callable[[Any], None]:
    pages = one_page(*(tool(name) for name in names))
    return lambda exchange: exchange.play(pages)


def found(embedded: Embedded) -> set[str]:
    return {indexed.qualified_name for indexed in embedded.deps.index.tools(Scope(), limit=100).tools}


def settled(embedded: Embedded) -> Callable[[], bool]:
    return lambda: not any(intent.is_lagging for intent in embedded.deps.intents.intents())


def test_a_restart_with_unchanged_servers_embeds_nothing(settings: Settings) -> None:
    with scripted_http(serves("read_file", "write_file")) as server:
        with run_embedded(settings) as first:
            first.announce(config(files=server))
            eventually(settled(first))
            assert found(first) == {"files:read_file", "files:write_file"}

        with run_embedded(settings) as second:
            second.announce(config(files=server))
            eventually(settled(second))

            assert found(second) == {"files:read_file", "files:write_file"}
            assert isinstance(second.deps.embedder, FastEmbedder)
            assert second.deps.embedder._loaded is None  # pyright: ignore[reportPrivateUsage]
    assert server.methods.count("tools/list") == 2


def at_once(computing: object) -> int:
    """Return how many reconciliations may count and embed at a time."""
    assert isinstance(computing, (threading.BoundedSemaphore, type(threading.Lock())))
    count = sum(iter(lambda: int(computing.acquire(blocking=False)), 0))
    for _ in range(count):
        computing.release()
    return count


def test_two_reconciliations_of_a_worker_embed_at_a_time_and_one_beside_searches(settings: Settings) -> None:
    with closing(open_intents(settings)) as intents, closing(open_dependencies(settings, intents)) as deps:
        assert at_once(deps.computing) == 2
    with run_embedded(settings) as embedded:
        assert at_once(embedded.deps.computing) == 1


def test_a_server_that_the_file_no_longer_names_is_taken_down(settings: Settings) -> None:
    with scripted_http(serves("a")) as kept, scripted_http(serves("b")) as dropped, run_embedded(settings) as embedded:
        embedded.announce(config(kept=kept, dropped=dropped))
        eventually(settled(embedded))

        embedded.announce(config(kept=kept))
        eventually(settled(embedded))

        assert found(embedded) == {"kept:a"}


def test_a_server_that_the_file_names_and_cannot_describe_now_is_left_as_it_is(settings: Settings) -> None:
    with scripted_http(serves("a")) as server, run_embedded(settings) as embedded:
        embedded.announce(config(s=server))
        eventually(settled(embedded))

        unusable = EntryProblem(name="s", reason="the environment variable TOKEN is not set")
        embedded.announce(Config(problems=(unusable,), named=frozenset({"s"})))
        eventually(settled(embedded))

        assert found(embedded) == {"s:a"}


def test_a_server_announced_by_an_event_survives_a_restart_and_is_reconciled_again(settings: Settings) -> None:
    with scripted_http(serves("a")) as server:
        with run_embedded(settings) as first:
            first.emit(ServerUp(source="someone", data=ServerAnnouncement(server_id="s", url=server.url)))
            eventually(settled(first))

        server.respond = serves("a", "b")
        with run_embedded(settings) as second:
            second.announce(Config())
            eventually(settled(second))

            assert found(second) == {"s:a", "s:b"}


def test_an_event_emitted_by_another_process_is_found_by_the_sweep(settings: Settings) -> None:
    with scripted_http(serves("a")) as server, run_embedded(settings) as embedded:
        with closing(open_intents(settings)) as intents:
            intents.record(ServerUp(data=ServerAnnouncement(server_id="s", url=server.url)), due_in_s=0)

        eventually(lambda: found(embedded) == {"s:a"})


def test_a_server_that_hangs_is_marked_stale_and_the_others_are_there(settings: Settings) -> None:
    impatient = settings.model_copy(update={"listing_timeout_s": 2.0})
    with (
        scripted_http(on_tools_list(hangs)) as slow,
        scripted_http(serves("a")) as good,
        run_embedded(impatient) as embedded,
    ):
        embedded.announce(config(slow=slow, good=good))

        eventually(lambda: found(embedded) == {"good:a"})
        eventually(lambda: (record := embedded.deps.index.server("slow")) and record.stale_since)

        record = embedded.deps.index.server("slow")
        assert record is not None
        assert record.last_error is not None
        assert record.last_error.startswith("slow: ")
        slow.stopping.set()


def test_a_server_that_failed_is_tried_again_without_being_asked(settings: Settings) -> None:
    with scripted_http(lambda exchange: exchange.send(500)) as server, run_embedded(settings) as embedded:
        embedded.announce(config(s=server))
        eventually(lambda: (record := embedded.deps.index.server("s")) and record.stale_since)

        server.respond = serves("a")

        eventually(lambda: found(embedded) == {"s:a"})
        eventually(settled(embedded))
        record = embedded.deps.index.server("s")
        assert record is not None
        assert (record.stale_since, record.last_error) == (None, None)


def test_a_count_that_was_changed_in_the_index_is_found_logged_and_counted_again(settings: Settings) -> None:
    with scripted_http(serves("a", "b")) as one, scripted_http(serves("c")) as two, run_embedded(settings) as embedded:
        embedded.announce(config(one=one, two=two))
        eventually(settled(embedded))
        before = totals(embedded)

        with capture_logs() as logs:
            add_to_count(embedded, "one:a", 10_000)
            eventually(lambda: [line["event"] for line in logs].count("counts_differ"))
            eventually(settled(embedded))
            eventually(lambda: totals(embedded) == before)

        (line,) = (line for line in logs if line["event"] == "counts_differ")
        assert (line["server"], line["encoding"], line["form"]) == ("one", "cl100k_base", "wire")
        assert line["counted"] - line["stated"] == 10_000
        ledger = Ledger(embedded.deps.index)
        for encoding in ENCODINGS:
            whole = ledger.baseline(Scope(), encoding)
            parts = ledger.by_server(Scope(), encoding)
            assert (whole.tokens, whole.model_tokens) == (before[encoding, "wire"], before[encoding, "model"])
            assert whole.tokens == sum(part.tokens for part in parts.values())


def totals(embedded: Embedded) -> dict[tuple[Encoding, Form], int]:
    """Return the exact sums over all tools."""
    index = embedded.deps.index
    return {
        (encoding, form): index.token_sum(Scope(), encoding, form).tokens for encoding in ENCODINGS for form in FORMS
    }


def add_to_count(embedded: Embedded, qualified_name: str, tokens: int) -> None:
    """Change a count in the payload of a tool, below the index."""
    version = embedded.versions.current()[0].version
    collection = embedded.versions.store._tools(version)  # pyright: ignore[reportPrivateUsage]  # no index writes a count
    where = must(any_of("names", (qualified_name,)))
    ((stored,), _) = collection.scroll(where, 1)
    collection.set_payload({"token_count": stored["token_count"] + tokens}, where)


def test_a_server_goes_down_and_returns_with_its_changes(settings: Settings) -> None:
    with scripted_http(serves("a")) as server, run_embedded(settings) as embedded:
        embedded.announce(config(s=server))
        eventually(settled(embedded))

        embedded.announce(Config())
        eventually(lambda: found(embedded) == set())

        server.respond = serves("a", "b")
        embedded.announce(config(s=server))
        eventually(lambda: found(embedded) == {"s:a", "s:b"})

        embedded.emit(changed("s"))
        eventually(settled(embedded))
        assert found(embedded) == {"s:a", "s:b"}


def test_it_ends_at_once_while_servers_hang_and_reconciles_them_at_the_next_start(settings: Settings) -> None:
    patient = settings.model_copy(update={"worker_concurrency": 2, "listing_timeout_s": 200.0})
    with scripted_http(on_tools_list(hangs)) as server:
        names = ("a", "b", "c", "d")
        with run_embedded(patient) as first:
            first.announce(config(**dict.fromkeys(names, server)))
            eventually(lambda: server.methods.count("tools/list") == 2)
            asked_at = time.monotonic()
        took_s = time.monotonic() - asked_at

        server.respond = serves("x")
        with run_embedded(settings) as second:
            eventually(lambda: found(second) == {f"{name}:x" for name in names})
            assert all(record.failures == 0 for record in second.deps.index.servers())

    assert took_s < patient.listing_timeout_s / 2


def test_the_files_servers_are_announced_as_its_own() -> None:
    with scripted_http(serves("a")) as server:
        assert [event.source for event in config(s=server).events()] == [SOURCE]


@pytest.mark.slow
def test_an_embedded_catalogue_is_not_ready_once_nothing_is_reconciled(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = settings.model_copy(update={"listing_timeout_s": 1.0})
    with scripted_http(serves("a")) as server, run_embedded(impatient) as embedded:
        embedded.announce(config(first=server))
        eventually(settled(embedded))
        assert ready(embedded) == (200, {"status": "ready"})

        release = threading.Event()

        def hang(*_: object) -> None:
            release.wait(600)

        monkeypatch.setattr(ReconcilePool, "_run", hang)
        for number in range(2 * embedded.settings.worker_concurrency):
            embedded.wake(f"waits {number}")
        embedded.emit(ServerUp(source="someone", data=ServerAnnouncement(server_id="second", url=server.url)))

        eventually(lambda: ready(embedded)[0] == 503)
        said = ready(embedded)[1]
        assert said["status"] == "not ready"
        assert list(said["checks"]) == ["tasks"]
        assert "no task has ended for" in said["checks"]["tasks"]

        monkeypatch.undo()
        release.set()
        eventually(lambda: ready(embedded)[0] == 200)
        eventually(settled(embedded))
        assert found(embedded) == {"first:a", "second:a"}


@pytest.mark.slow
def test_an_embedded_catalogue_is_not_ready_when_its_intents_are_gone(settings: Settings) -> None:
    with run_embedded(settings) as embedded:
        embedded.deps.intents.close()

        eventually(lambda: ready(embedded)[0] == 503)

        assert "not done for" in ready(embedded)[1]["checks"]["sweep"]


def test_the_catalogue_of_a_service_counts_its_dead_letters(settings: Settings) -> None:
    with running(settings) as service:
        before = service.catalogue.dead_letters()
        service.embedded.deps.intents.add_dead_letter("not a server", "{}")

        assert (before, service.catalogue.dead_letters()) == (0, 1)

        service.embedded.deps.intents.close()
        assert service.catalogue.dead_letters() is None


def ready(embedded: Embedded) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of `/readyz` for this catalogue."""
    entrance = HttpListener(socket.socket())
    entrance.close()
    service = build_server(builtin_tools(catalogue_of(embedded.deps.index, embedded.deps.embedder, embedded.settings)))
    app = http_app(service, entrance, index=embedded.deps.index, checks=embedded.checks)

    async def asked() -> tuple[int, dict[str, Any]]:
        async with http_client(app) as http:
            answer = await http.get("/readyz")
            return answer.status_code, answer.json()

    return anyio.run(asked)
