"""What the query service counts, over MCP and on in-memory neighbours, and who may read it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from query.auth.authentication import Authentication
from query.catalogue import Catalogue
from query.metrics import NAMED, CatalogueGauges
from query.paging.policy import ResponsePolicy
from query.savings.ledger import Ledger
from query.server.mcp import service_of
from shared.catalog import FEATURES_VERSION, Endpoint, RejectedTool, Scope, ServerRecord, Status
from shared.errors import IndexUnavailable
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.http_callers import app_of, entry, http_client, static
from tests.support.metrics import samples, shown

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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


async def test_a_search_is_counted_with_its_tokens_and_timed_by_its_parts() -> None:
    catalogue = catalogue_of(record("time"))
    async with Client(service_of(catalogue)) as client:
        result = await client.call_tool("find_tool", {"tool_description": "time", "limit": 1})
        assert result.structured_content
        more = {"tool_description": "time", "limit": 1, "cursor": result.structured_content["nextCursor"]}
        assert not (await client.call_tool("find_tool", more)).is_error
        assert (await client.call_tool("find_tool", {})).is_error

    found = shown(catalogue.metrics.registry)
    tokens = [found[f'toolscale_tokens_{kind}_total{{encoding="cl100k_base"}}'] for kind in ("baseline", "saved")]
    assert tokens == [20, 10]
    assert found['toolscale_tokens_returned_total{encoding="cl100k_base"}'] == 20
    assert [found[f'toolscale_find_seconds_count{{part="{part}"}}'] for part in ("embed", "search", "sum", "fit")] == (
        [2, 2, 2, 2]
    )
    assert found['toolscale_requests_total{outcome="ok",tool="find_tool"}'] == 2
    assert found['toolscale_requests_total{outcome="refused",tool="find_tool"}'] == 1
    assert found['toolscale_request_seconds_count{tool="find_tool"}'] == 3


async def test_a_name_that_a_caller_makes_up_becomes_no_time_series() -> None:
    catalogue = catalogue_of(record("time"))
    async with Client(service_of(catalogue)) as client:
        for number in range(3):
            with pytest.raises(Exception, match="expected the tool"):
                await client.call_tool(f"made_up_{number}", {})

    assert not any("made_up" in name for name in shown(catalogue.metrics.registry))


async def test_an_answer_that_was_cut_is_counted() -> None:
    catalogue = catalogue_of(record("time"))
    catalogue.index.upsert([ingested(make_tool("long", "x", "word " * 3000, tokens=3000), catalogue.embedder)])
    catalogue.index.put_server(record("long"))
    metered = replace(catalogue, response_policy=ResponsePolicy(on_truncated=catalogue.metrics.count_truncated))
    async with Client(service_of(metered)) as client:
        await client.call_tool("find_tool", {"tool_description": "word", "limit": 1, "max_tokens": 500})

    assert (
        shown(catalogue.metrics.registry)['toolscale_responses_truncated_total{form="summary",tool="find_tool"}'] == 1
    )


def test_the_servers_with_the_most_changed_tools_are_named() -> None:
    changed = [record(f"s{number}", unaccepted=number) for number in range(NAMED + 3)]
    catalogue = catalogue_of(*changed)
    catalogue.metrics.registry.register(CatalogueGauges(lambda: catalogue.ledger.known(Scope())))

    found = {name: value for name, value in shown(catalogue.metrics.registry).items() if "tools_changed" in name}

    assert found == {f'toolscale_tools_changed{{server="s{number}"}}': number for number in range(3, NAMED + 3)}


def test_the_catalogues_state_is_shown_and_as_few_servers_are_named_as_are_promised() -> None:
    many = [record(f"s{number}", ago_s=100.0 * number) for number in range(NAMED + 5)]
    catalogue = catalogue_of(
        *many,
        record("hidden", "quarantined", stale_since=1.0),
        record("down", "stopped"),
        record("late", stale_since=1.0),
        record("new", ago_s=None),
        record("odd", rejected=(RejectedTool(name="t", reason="no schema"),)),
    )
    catalogue.metrics.registry.register(CatalogueGauges(lambda: catalogue.ledger.known(Scope())))

    found = shown(catalogue.metrics.registry)

    states = {"running": len(many) + 1, "stale": 1, "quarantined": 1, "stopped": 1, "awaited": 1}
    assert {state: found[f'toolscale_servers{{state="{state}"}}'] for state in states} == states
    assert found['toolscale_tools{status="quarantined"}'] == 2
    assert found["toolscale_tools_rejected"] == 1
    assert found['toolscale_catalogue_tokens{encoding="cl100k_base"}'] == 20 * (len(many) + 2)
    named = [name for name in found if name.startswith("toolscale_stalest_server_seconds")]
    assert named == [f'toolscale_stalest_server_seconds{{server="s{number}"}}' for number in range(14, 4, -1)]
    assert found['toolscale_list_age_seconds_bucket{le="300.0"}'] == 5
    assert found['toolscale_list_age_seconds_bucket{le="+Inf"}'] == len(many) + 2


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
    registry = CollectorRegistry()
    registry.register(CatalogueGauges(lambda: known))

    states = {name: value for name, value in shown(registry).items() if name.startswith("toolscale_servers{")}

    assert sum(states.values()) == len(known)
    never = [server for server in known if server.status == "running" and server.last_listed_at is None]
    assert states['toolscale_servers{state="awaited"}'] >= len(never)
    assert {server.state for server in never} <= {"awaited"}


def test_an_index_that_is_away_is_shown_and_hides_no_other_metric() -> None:
    def away() -> list[ServerRecord]:
        raise IndexUnavailable("away")

    catalogue = catalogue_of()
    catalogue.metrics.registry.register(CatalogueGauges(away))

    found = shown(catalogue.metrics.registry)

    assert found["toolscale_index_up"] == 0
    assert "toolscale_no_match_total" in found


# --- who may read them ---


async def statuses(app: Starlette, *asked: dict[str, str]) -> list[int]:
    """Return the status of a request with each of these headers."""
    async with http_client(app) as http:
        return [(await http.get("/metrics", headers=headers)).status_code for headers in asked]


def showing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def known(tmp_path: Path) -> Authentication:
    return static(tmp_path / "tokens.toml", all=entry("of-all-groups"), some=entry("of-some", groups=["dev"]))


async def test_where_callers_show_tokens_metrics_are_for_those_who_see_all_groups(known: Authentication) -> None:
    app = app_of(FakeIndex(), known)

    found = await statuses(app, {}, showing("wrong"), showing("of-some"), showing("of-all-groups"))

    assert found == [401, 401, 403, 200]


async def test_who_shows_a_token_may_ask_for_metrics_at_an_address_as_prometheus_does(known: Authentication) -> None:
    app = app_of(FakeIndex(), known)
    address = {"host": "172.18.0.5:8765"}

    found = await statuses(app, address, showing("of-some") | address, showing("of-all-groups") | address)

    assert found == [401, 403, 200]


async def test_open_metrics_are_for_all_who_reach_the_port_by_whatever_name(known: Authentication) -> None:
    app = app_of(FakeIndex(), known, metrics_public=True)

    assert await statuses(app, {}, {"host": "query:8765"}) == [200, 200]


async def test_without_tokens_a_web_page_cannot_read_metrics_by_a_name_of_its_own() -> None:
    app = app_of(FakeIndex(), None)

    assert await statuses(app, {}, {"host": "attacker.example"}) == [200, 421]


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
