"""What the query service counts, over MCP and on in-memory neighbours, and who may read it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from prometheus_client import CollectorRegistry, generate_latest

from query.catalogue import Catalogue
from query.mcp import service_of
from query.metrics import CatalogueGauges
from query.records import Ledger
from shared.catalog import FEATURES_VERSION, Endpoint, Scope, ServerRecord, Status
from shared.errors import IndexUnavailable
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.http_callers import app_of, entry, http_client, static
from tests.support.metrics import counted, samples, shown

pytestmark = pytest.mark.anyio


def record(server_id: str, status: Status = "running", *, ago_s: float | None = 5.0, **more: object) -> ServerRecord:
    """Return the record of a server of two tools and 20 tokens, listed so many seconds ago."""
    listed_at = None if ago_s is None else time.time() - ago_s
    held = {"tool_count": 2, "tokens": {"cl100k_base": 20}} if listed_at else {}
    return ServerRecord.model_validate(
        {
            "server_id": server_id,
            "endpoint": Endpoint(),
            "features_version": FEATURES_VERSION,
            "status": status,
            "revision": 1,
        }
        | {"last_listed_at": listed_at}
        | held
        | more
    )


def catalogue_of(*records: ServerRecord) -> Catalogue:
    index, embedder = FakeIndex(), FakeEmbedder()
    index.upsert([ingested(make_tool("time", name, "Tell the time"), embedder) for name in ("now", "convert")])
    for server in records:
        index.put_server(server)
    return Catalogue(index, embedder, Ledger(index), no_match_threshold=-1)


async def test_searches_are_counted_by_outcome_and_the_tokens_of_a_search_once() -> None:
    catalogue = catalogue_of(record("time"))
    with counted() as found:
        async with Client(service_of(catalogue)) as client:
            result = await client.call_tool("find_tool", {"tool_description": "time", "limit": 1})
            assert result.structured_content
            more = {"tool_description": "time", "limit": 1, "cursor": result.structured_content["nextCursor"]}
            assert not (await client.call_tool("find_tool", more)).is_error
            assert (await client.call_tool("find_tool", {})).is_error

    assert found['toolscale_tokens_saved_total{encoding="cl100k_base"}'] == 10
    assert found['toolscale_requests_total{outcome="ok",tool="find_tool"}'] == 2
    assert found['toolscale_requests_total{outcome="refused",tool="find_tool"}'] == 1
    assert found['toolscale_request_seconds_count{tool="find_tool"}'] == 3


async def test_a_name_that_a_caller_makes_up_becomes_no_time_series() -> None:
    catalogue = catalogue_of(record("time"))
    async with Client(service_of(catalogue)) as client:
        for number in range(3):
            with pytest.raises(Exception, match="expected the tool"):
                await client.call_tool(f"made_up_{number}", {})

    assert not any("made_up" in name for name in shown())


def gauges_of(known: Sequence[ServerRecord]) -> dict[str, float]:
    """Return the gauges of a catalogue of these servers, without the other metrics of this process."""
    registry = CollectorRegistry()
    registry.register(CatalogueGauges(lambda: known))
    return samples(generate_latest(registry).decode())


def test_the_catalogue_is_shown_by_numbers_that_name_no_server() -> None:
    catalogue = catalogue_of(
        record("one"),
        record("changed", unaccepted=3, held=1),
        record("hidden", "quarantined", stale_since=1.0),
        record("down", "stopped"),
        record("late", stale_since=1.0),
        record("new", ago_s=None),
    )

    found = gauges_of(catalogue.ledger.known(Scope()))

    states = {"listed": 2, "stale": 1, "quarantined": 1, "stopped": 1, "waiting": 1, "failing": 0, "installing": 0}
    assert {state: found[f'toolscale_servers{{state="{state}"}}'] for state in states} == states
    assert (found["toolscale_tools"], found["toolscale_tools_changed"], found["toolscale_tools_held"]) == (6, 3, 1)
    assert found['toolscale_catalogue_tokens{encoding="cl100k_base"}'] == 60


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("running", "stopped", "quarantined")),
            st.none() | st.just(100.0),
            st.none() | st.just(1.0),
            st.sampled_from((FEATURES_VERSION, "old")),
        )
    )
)
def test_the_states_of_servers_add_up_to_the_known_servers(
    servers: list[tuple[Status, float | None, float | None, str]],
) -> None:
    known = [
        record(f"s{number}", status, ago_s=ago_s, stale_since=stale_since, features_version=version)
        for number, (status, ago_s, stale_since, version) in enumerate(servers)
    ]

    states = {name: value for name, value in gauges_of(known).items() if name.startswith("toolscale_servers{")}

    assert sum(states.values()) == len(known)
    never = [server for server in known if server.status == "running" and server.last_listed_at is None]
    assert {server.state for server in never} <= {"waiting", "failing"}
    assert sum(states[f'toolscale_servers{{state="{state}"}}'] for state in ("waiting", "failing")) >= len(never)


def test_an_index_that_is_away_is_shown_and_hides_no_other_metric() -> None:
    def away() -> list[ServerRecord]:
        raise IndexUnavailable("away")

    found = shown(CatalogueGauges(away))

    assert found["toolscale_index_up"] == 0
    assert 'toolscale_calls_total{outcome="ok"}' in found


# --- who may read them ---


@pytest.mark.parametrize(
    ("service", "host", "token", "status"),
    [
        ("with tokens", "127.0.0.1", None, 401),
        ("with tokens", "127.0.0.1", "wrong", 401),
        ("with tokens", "127.0.0.1", "of-some", 403),
        ("with tokens", "127.0.0.1", "of-all-groups", 200),
        # Prometheus asks at an address
        ("with tokens", "172.18.0.5:8765", None, 401),
        ("with tokens", "172.18.0.5:8765", "of-some", 403),
        ("with tokens", "172.18.0.5:8765", "of-all-groups", 200),
        ("open metrics", "127.0.0.1", None, 200),
        ("open metrics", "query:8765", None, 200),
        ("without tokens", "127.0.0.1", None, 200),
        ("without tokens", "attacker.example", None, 421),
    ],
)
async def test_metrics_are_for_those_who_see_all_groups_and_for_no_web_page(
    tmp_path: Path, service: str, host: str, token: str | None, status: int
) -> None:
    known = static(tmp_path / "tokens.toml", all=entry("of-all-groups"), some=entry("of-some", groups=["dev"]))
    authentication = None if service == "without tokens" else known
    app = app_of(FakeIndex(), authentication, metrics_public=service == "open metrics")

    async with http_client(app, token) as http:
        assert (await http.get("/metrics", headers={"host": host})).status_code == status


async def test_metrics_are_shown_in_the_format_that_prometheus_asks_for() -> None:
    async with http_client(app_of(FakeIndex(), None)) as http:
        plain = await http.get("/metrics")
        modern = await http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})

    assert _type(plain) == "text/plain"
    assert _type(modern) == "application/openmetrics-text"
    assert modern.text.endswith("# EOF\n")
    assert samples(plain.text)["toolscale_index_up"] == 1


def _type(response: httpx2.Response) -> str:
    return str(response.headers["content-type"]).partition(";")[0]
