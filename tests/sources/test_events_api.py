"""The events API over real HTTP, on real intents, with stores and brokers that hang."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from shared.catalog import PRODUCER_PREFIX
from shared.events import ServerEvent
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from shared.service.token_file import digest
from tests.support.builders import changed, down, up
from tests.support.events_api import LIMIT, TOKEN, Answer, Producer, open_events_api
from tests.support.metrics import counted, scraped
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.waiting import eventually
from workers.emit import Emitter
from workers.events_api.api import BATCH, MAX_BATCH, EventRecorder
from workers.events_api.producers import ProducerRights
from workers.process import WAITING_LIMIT, enqueue_in_background

pytestmark = pytest.mark.process

PACE = RetryPolicy(1.0, 4.0)
# what a producer is promised
NOT_HELD_S = 2.0


@pytest.fixture
def intents(tmp_path: Path) -> Generator[Intents]:
    with closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), PACE)) as store:
        store.mark_complete()
        yield store


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def producer(intents: Intents, woken: list[str]) -> Generator[Producer]:
    with (
        closing(EventRecorder(Emitter(intents, woken.append, 5.0))) as recorder,
        open_events_api(recorder) as events_api,
    ):
        yield events_api


def document(event: ServerEvent) -> dict[str, Any]:
    return event.model_dump(mode="json")


def shortest_s(request: Callable[[], object]) -> float:
    """Return the shortest that this took of three times: a busy machine delays one of them, the events API all."""
    took_s: list[float] = []
    for _ in range(3):
        started = time.monotonic()
        request()
        took_s.append(time.monotonic() - started)
    return min(took_s)


def desired(intents: Intents) -> dict[str, int]:
    return {intent.server_id: intent.desired for intent in intents.intents()}


def test_an_event_is_accepted_once_it_is_recorded(producer: Producer, intents: Intents, woken: list[str]) -> None:
    event = up("docs")

    answer = producer.post(document(event))

    assert answer == Answer(202, {"status": 202, "id": event.id, "server_id": "docs", "generation": 1})
    assert desired(intents) == {"docs": 1}
    assert woken == ["docs"]


def test_an_event_in_headers_is_accepted(producer: Producer, intents: Intents) -> None:
    event = up("docs")
    headers = {"ce_specversion": "1.0", "ce_id": event.id, "ce_source": event.source, "ce_type": event.type}

    answer = producer.post(event.data.model_dump(mode="json"), "application/json", **headers)

    assert answer.status == 202
    assert desired(intents) == {"docs": 1}


def test_a_batch_is_accepted_with_a_line_for_each_event(producer: Producer, intents: Intents) -> None:
    answer = producer.post([document(event) for event in (up("a"), up("b"), down("a"))], BATCH)

    assert answer.status == 202
    assert [(event["server_id"], event["generation"]) for event in answer.content["events"]] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
    ]
    assert desired(intents) == {"a": 2, "b": 1}


def test_a_refused_event_of_a_batch_is_named_and_does_not_cost_the_others(producer: Producer, intents: Intents) -> None:
    answer = producer.post([document(up("a")), document(changed("never-announced")), 7], BATCH)

    assert answer.status == 207
    assert [event["status"] for event in answer.content["events"]] == [202, 400, 400]
    assert answer.content["events"][1]["field"] == "data.server_id"
    assert desired(intents) == {"a": 1}
    assert len(intents.dead_letters(10)) == 2


def test_a_batch_of_too_many_events_is_refused_and_leaves_no_dead_letters(producer: Producer, intents: Intents) -> None:
    answer = producer.post([0] * (MAX_BATCH + 1), BATCH)

    assert answer.status == 413
    assert not intents.dead_letters(1)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{not json", "event"),
        (b"[" * 2_000, "event"),
        ({"specversion": "1.0"}, "id"),
        ({**document(up()), "data": {"server_id": "s", "url": "ftp://x"}}, "data.url"),
        ({**document(up()), "data": {"server_id": "s", "url": "http://h", "command": "rm"}}, "data.command"),
    ],
)
def test_an_invalid_event_is_refused_by_field_and_is_among_the_dead_letters(
    producer: Producer, intents: Intents, body: object, field: str
) -> None:
    answer = producer.post(body)

    assert (answer.status, answer.content["field"]) == (400, field)
    assert [letter.reason for letter in intents.dead_letters(10)] == [f"{field}: {answer.content['reason']}"]


def test_headers_without_a_json_body_are_refused_as_data(producer: Producer) -> None:
    headers = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "me", "ce_type": "dev.toolscale.server.down"}

    answer = producer.post(b"not JSON", "application/json", **headers)

    assert (answer.status, answer.content["field"]) == (400, "data")


def test_word_of_an_unknown_server_is_asked_for_again_until_what_a_store_lost_is_restored(tmp_path: Path) -> None:
    with (
        closing(Intents(SqliteStorage(tmp_path / "wiped.sqlite3"), PACE)) as wiped,
        closing(EventRecorder(Emitter(wiped, lambda _: None, 5.0))) as recorder,
        open_events_api(recorder) as producer,
    ):
        assert producer.post(document(up("new"))).status == 202
        assert producer.post(document(down("forgotten"))).status == 503
        assert wiped.dead_letters(10) == []
        wiped.insert_if_absent(
            Intent(server_id="forgotten", status="running", announcement=up("forgotten").data, source="s", desired=2)
        )
        wiped.mark_complete()

        assert producer.post(document(down("forgotten"))).content["generation"] == 3
        assert producer.post(document(down("never-announced"))).status == 400


@pytest.mark.parametrize("token", [None, "", "wrong", "a-token-for-testsX", "caf\xe9"])
def test_nothing_is_taken_without_the_token(producer: Producer, intents: Intents, token: str | None) -> None:
    answer = Producer(producer.url, token).post(document(up()))

    assert answer.status == 401
    assert desired(intents) == {}
    assert intents.dead_letters(10) == []


@pytest.mark.parametrize("content_type", ["text/plain", "application/cloudevents+xml", None])
def test_another_media_type_is_refused(producer: Producer, content_type: str | None) -> None:
    assert producer.post(document(up()), content_type).status == 415


def test_a_body_above_the_limit_is_refused(producer: Producer, intents: Intents) -> None:
    assert producer.post(b" " * (LIMIT + 1)).status == 413
    assert producer.post(b" " * LIMIT + b"").status == 400
    assert desired(intents) == {}


def test_a_broker_that_hangs_does_not_hold_the_producer(intents: Intents) -> None:
    hanging, reached = threading.Event(), threading.Event()

    def hang(_: str) -> None:
        reached.set()
        hanging.wait(60)

    with (
        enqueue_in_background(hang) as wake,
        closing(EventRecorder(Emitter(intents, wake, 5.0))) as recorder,
        open_events_api(recorder) as producer,
    ):
        assert producer.post(document(up("a"))).status == 202
        assert reached.wait(60)
        batch = [document(up(f"s{number}")) for number in range(20)]
        answer = producer.post(batch, BATCH)  # while the broker hangs
        hanging.set()

    assert answer.status == 202
    assert len(desired(intents)) == 21


def test_more_messages_than_may_wait_are_left_to_the_sweep() -> None:
    hanging = threading.Event()
    sent: list[str] = []

    def hang(server_id: str) -> None:
        hanging.wait(60)
        sent.append(server_id)

    with enqueue_in_background(hang) as wake:
        for number in range(WAITING_LIMIT + 100):
            wake(f"s{number}")
        hanging.set()
        eventually(lambda: len(sent) >= WAITING_LIMIT)

    assert len(sent) <= WAITING_LIMIT + 1


def test_a_broker_that_fails_once_is_asked_again_for_the_next_event() -> None:
    sent: list[str] = []

    def fail_first(server_id: str) -> None:
        if server_id == "first":
            raise ConnectionError("the broker is gone")
        sent.append(server_id)

    with enqueue_in_background(fail_first) as wake:
        wake("first")
        wake("second")
        eventually(lambda: sent == ["second"])


def test_a_store_that_hangs_is_answered_with_503_in_time() -> None:
    singles: list[Answer] = []
    batches: list[Answer] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # takes connections and says nothing
        closing(Intents(RedisStorage(connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")), PACE)) as store,
        closing(EventRecorder(Emitter(store, lambda _: None, 5.0))) as recorder,
        open_events_api(recorder) as producer,
    ):
        single_s = shortest_s(lambda: singles.append(producer.post(document(up("a")))))
        batch_s = shortest_s(lambda: batches.append(producer.post([document(up("a")), document(up("b"))], BATCH)))
        ready = producer.get("/readyz")

    assert {answer.status for answer in (*singles, *batches)} == {ready} == {503}
    assert [event["status"] for batch in batches for event in batch.content["events"]] == [503, 503] * 3
    assert max(single_s, batch_s) < NOT_HELD_S


def test_a_store_that_is_gone_is_answered_with_503() -> None:
    with (
        closing(Intents(RedisStorage(connect(f"redis://127.0.0.1:{free_port()}/0")), PACE)) as store,
        closing(EventRecorder(Emitter(store, lambda _: None, 5.0))) as recorder,
        open_events_api(recorder) as producer,
    ):
        assert producer.post(document(up("a"))).status == 503
        assert producer.get("/healthz") == 200


@pytest.mark.redis
def test_a_separate_events_api_records_in_redis_and_sends_a_message(own_redis_url: str, tmp_path: Path) -> None:
    port, token = free_port(), "the-operators-own-token"
    composition = Composition(
        own_redis_url, tmp_path, {"TOOLSCALE_EVENTS_TOKEN": token, "TOOLSCALE_EVENTS_PORT": str(port)}
    )
    with (
        composition.run("events-api", "-m", "workers.events_api") as events_api,
        Redis.from_url(own_redis_url) as broker,
    ):
        events_api.wait_for("events_api_started")
        producer = Producer(f"http://127.0.0.1:{port}", token)

        assert producer.get("/readyz") == 200
        assert producer.post(document(up("docs"))).status == 202
        with closing(Intents(RedisStorage(connect(own_redis_url)), PACE)) as store:
            assert [intent.server_id for intent in store.intents()] == ["docs"]
        eventually(lambda: broker.llen("toolscale") == 1)
        assert events_api.stop() == 0
        assert token not in events_api.output()


@pytest.mark.redis
def test_producers_with_tokens_of_their_own_keep_their_servers(own_redis_url: str, tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "producers.toml"
    rights = {
        name: ProducerRights(
            sha256=digest(f"of {name}"),
            id_prefixes=frozenset({"shared/", f"{name}/"}),
            hosts=frozenset({"127.0.0.1"}),
        )
        for name in ("ci", "web")
    }
    path.write_text("\n".join(table.table(name) for name, table in rights.items()))
    environment = {"TOOLSCALE_EVENTS_TOKEN": TOKEN, "TOOLSCALE_PRODUCERS_FILE": str(path)}
    composition = Composition(own_redis_url, tmp_path, environment | {"TOOLSCALE_EVENTS_PORT": str(port)})
    with composition.run("events-api", "-m", "workers.events_api") as events_api:
        events_api.wait_for("events_api_started")
        ci, web, everything = (Producer(f"http://127.0.0.1:{port}", token) for token in ("of ci", "of web", TOKEN))
        own, other, let_go = up("shared/a"), up("web/a"), down("shared/a")

        def statuses(*sent: tuple[Producer, ServerEvent]) -> list[int]:
            return [producer.post(document(event)).status for producer, event in sent]

        first = statuses((ci, own), (web, own), (web, let_go), (everything, own))
        outside = statuses((ci, other), (ci, up("shared/b", groups=["ops"])), (web, changed("shared/a")))
        then = statuses((ci, let_go), (web, own), (ci, own), (everything, let_go))
        path.write_text(rights["web"].table("web"))
        removed = statuses((ci, up("ci/a")), (web, other))
        assert events_api.stop() == 0

    assert (first, outside, then) == ([202, 400, 400, 400], [400, 400, 202], [202, 202, 400, 202])
    assert removed == [401, 202]
    with closing(Intents(RedisStorage(connect(own_redis_url)), PACE)) as store:
        web_source = f"{PRODUCER_PREFIX}web"
        assert {intent.server_id: intent.source for intent in store.intents()} == {
            "shared/a": web_source,
            "web/a": web_source,
        }
        assert len(store.dead_letters(99)) == 6


def test_without_a_token_the_events_api_does_not_start(tmp_path: Path) -> None:
    composition = Composition("", tmp_path, {"TOOLSCALE_EVENTS_TOKEN": ""})
    with composition.run("events-api", "-m", "workers.events_api") as events_api:
        assert events_api.process.wait(60) == 1
        assert "TOOLSCALE_EVENTS_TOKEN" in events_api.output()


def test_events_are_counted_and_shown_only_with_the_token(intents: Intents) -> None:
    recorder = EventRecorder(Emitter(intents, lambda _: None, 5.0))
    with closing(recorder), open_events_api(recorder) as events_api, counted() as found:
        assert events_api.post(document(up("docs"))).status == 202
        assert events_api.post({"type": "nonsense"}).status == 400
        assert replace(events_api, token="wrong").post(document(up("docs"))).status == 401

        page = scraped(f"{events_api.url}/metrics", authorization=f"Bearer {TOKEN}")
        stranger = events_api.get("/metrics")

    outcomes = [f'toolscale_events_total{{outcome="{outcome}"}}' for outcome in ("recorded", "refused")]
    assert [found[outcome] for outcome in outcomes] == [1, 1]
    assert page.keys() >= set(outcomes)
    assert stranger == 401
