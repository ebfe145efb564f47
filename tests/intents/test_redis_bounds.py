"""The bounds of Redis's keys hold in a real Redis, with the longest names and texts."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import suppress

import pytest
import redis

from query.kept import CALLERS_SHARE, OVERHEAD_BYTES, Kept, RedisEntries
from query.usage.store_redis import PREFIX, RedisUsage
from query.usage.usage import MAX_COUNTERS_A_DAY, MAX_NAMES_BYTES, OTHERS, CatalogueSize, Counts, RowKey, today
from shared.errors import EventInvalid
from shared.events import MAX_GROUPS, MAX_LABELS, MAX_LABELS_BYTES, ServerAnnouncement, ServerUp
from shared.intents.definitions import MAX_TEXT_BYTES, ChangedDefinition, Definitions
from shared.intents.intent import DEAD_LETTER_LIMIT
from shared.intents.intents import Intents
from shared.intents.redis import DEAD_LETTERS, DUE, SERVERS, RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from tests.support.reference import redis_bounds as bounds
from workers.emit import Emitter
from workers.fetch.definitions import MAX_NAME_CHARACTERS

pytestmark = [pytest.mark.process, pytest.mark.redis]

DAY = today()
# The longest character as JSON.
LONG = "\x01"
# Of buffers of a connection.
CONNECTION_BYTES = 256 * bounds.KIB


@pytest.fixture
def client(own_redis_url: str) -> Generator[redis.Redis]:
    with connect(own_redis_url) as opened:
        yield opened


@pytest.fixture
def intents(client: redis.Redis) -> Intents:
    return Intents(RedisStorage(client), RetryPolicy(1.0, 4.0))


def bytes_of(client: redis.Redis, key: str) -> int:
    return int(client.memory_usage(key, samples=0) or 0)


def longest_id(number: int) -> str:
    return f"{number:0200d}"


@pytest.mark.parametrize(
    "character", ["x", pytest.param(LONG, marks=pytest.mark.slow), pytest.param("\U0001f600", marks=pytest.mark.slow)]
)
def test_thousands_of_large_refused_events_take_16_mib(client: redis.Redis, intents: Intents, character: str) -> None:
    client.config_set("maxmemory", "32mb")
    emitter = Emitter(intents, lambda _: None, 0.0)
    event = json.dumps({"id": character * 12_000}, ensure_ascii=False)

    for _ in range(6_112):
        with suppress(EventInvalid):
            emitter.accept(event)

    assert client.llen(DEAD_LETTERS) == DEAD_LETTER_LIMIT
    assert bytes_of(client, DEAD_LETTERS) <= DEAD_LETTER_LIMIT * bounds.LETTER_BYTES <= 16 * bounds.MIB
    intents.record(ServerUp(data=ServerAnnouncement(server_id="s", transport="stdio")), due_in_s=0)


def test_the_largest_intent_and_its_places_in_the_indexes_have_their_bounds(
    client: redis.Redis, intents: Intents
) -> None:
    characters = MAX_LABELS_BYTES // MAX_LABELS // len(json.dumps(LONG)) - 2
    largest = ServerAnnouncement(
        server_id=longest_id(0),
        url="http://" + "\U0001f600" * 1_993,
        groups=frozenset(f"{number:0100d}" for number in range(MAX_GROUPS)),
        labels={f"{number:02d}": LONG * characters for number in range(MAX_LABELS)},
        credential_ref="c" * 100,
    )
    event = ServerUp(source=LONG * 500, traceparent=f"00-{'a' * 32}-{'b' * 16}-01", data=largest)
    intents.record(event, due_in_s=0)
    intents.begin(largest.server_id)
    catalogue_id = f"{'d' * 32} {LONG * 200} path {LONG * 1_993}?{'c' * 100}"
    intents.commit(largest.server_id, 1, catalogue_id)
    intents.record(event, due_in_s=0)
    intents.begin(largest.server_id)
    intents.fail(largest.server_id, 2, LONG * 100_000)
    for number in range(1, 1_030):
        intents.record(ServerUp(data=ServerAnnouncement(server_id=longest_id(number), transport="stdio")), due_in_s=0)

    stored = bytes_of(client, f"toolscale:intent:{largest.server_id}")

    # a URL has no control character, which JSON would write in six bytes
    assert 0.75 * bounds.INTENT_BYTES < stored <= bounds.INTENT_BYTES
    for index in (SERVERS, DUE):
        assert bytes_of(client, index) <= 1_030 * bounds.INDEX_BYTES


@pytest.mark.parametrize(("tools", "text_characters"), [(1, 100_000), (1_000, 100), (10_000, 100_000)])
def test_the_largest_definitions_of_a_server_have_their_bound(
    client: redis.Redis, intents: Intents, tools: int, text_characters: int
) -> None:
    names = [f"{number:08d}" + "\U0001f600" * (MAX_NAME_CHARACTERS - 8) for number in range(tools)]
    texts = {"accepted": "x" * text_characters, "current": "x" * text_characters}
    change = ChangedDefinition(digest="d" * 32, since=1763869555.123456, **texts)
    document = Definitions(
        server_id=longest_id(0),
        accepted=dict.fromkeys(names, "d" * 32),
        changed=dict.fromkeys(names, change),
        held=True,
    )
    intents.update_definitions(longest_id(0), lambda _: document.within_limit())

    stored = bytes_of(client, f"toolscale:definitions:{longest_id(0)}")

    assert stored <= MAX_TEXT_BYTES * bounds.ALLOCATED + tools * bounds.DEFINITION_BYTES + bounds.INDEX_BYTES


def test_a_day_of_usage_has_its_bound_whatever_the_names(client: redis.Redis) -> None:
    usage = RedisUsage(client, 30)
    used: Counts = dict.fromkeys(("answers", "calls", "failed_calls", "ms", "bytes"), 1_000_000)
    longest = MAX_NAMES_BYTES - len(RowKey(DAY, "ann", "", "read").names)
    for start in range(0, 12_000, 2_000):
        numbers = range(start, start + 2_000)
        usage.add({RowKey(DAY, "ann", f"{number:0{longest}d}", "read"): used for number in numbers})
        usage.add({RowKey(DAY, "ann", longest_id(number), LONG * 128): used for number in numbers})
    usage.put_size(DAY, CatalogueSize(1_030, 9_999, 9_999_999))

    stored = bytes_of(client, PREFIX + DAY.isoformat())

    assert 0.8 * MAX_COUNTERS_A_DAY * bounds.COUNTER_BYTES < stored <= MAX_COUNTERS_A_DAY * bounds.COUNTER_BYTES
    assert usage.rows(DAY, DAY)[RowKey(DAY, OTHERS, OTHERS, OTHERS)]["calls"] > 20_000 * 1_000_000


@pytest.mark.parametrize("size", [10, 1_000, 33_000])
def test_cursors_take_their_bytes_and_at_most_a_quarter_more(own_redis_url: str, size: int) -> None:
    with connect(own_redis_url, decode=False) as client:
        most = 2 * bounds.MIB
        kept = Kept(RedisEntries(client), most)
        kept.put(b"", "c")
        before = client.info("memory")["used_memory"]

        for number in range(2 * most // (size + OVERHEAD_BYTES)):
            kept.put(b"x" * size, f"c{number % CALLERS_SHARE}")

        used = client.info("memory")["used_memory"] - before
    assert 0.8 * most < used <= most * bounds.ALLOCATED + CONNECTION_BYTES
