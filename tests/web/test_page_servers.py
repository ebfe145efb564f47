"""The table of servers with its filters, order and pages, and the facts on the page of a server."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.caller import ANYONE, Caller
from query.catalogue import Catalogue
from query.records import Ledger
from query.servers import ServerRow, SetRow
from query.usage.usage import RowKey, Usage, today
from query.web.page import Means, Page, PageRequest, render
from query.web.servers import COLUMNS, ORIGINS, TableQuery, origin_of, table_query
from query.web.views import NextRun, next_run, server, servers, split_error
from shared.catalog import OPERATOR_SOURCE, SERVER_STATES, Endpoint, ServerRecord
from shared.upstream.log import STARTED, log_file
from shared.upstream.mcp_json import ConfigFile
from shared.upstream.session import LAST_WORDS
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.replicated import put_server, tool

TEAMS = frozenset({"team"})
TEAM = Caller("ann", groups=TEAMS)
HOSTILE = '"><script>alert(1)</script>\u202e'
SOURCES = (OPERATOR_SOURCE, "toolscale/docker", "toolscale/kubernetes/prod", "toolscale/toolhive", "ci", "")


def catalogue(*records: Mapping[str, Any], **more: Any) -> Catalogue:
    """Return a catalogue of these servers, each with one tool whose tokens its `tokens` states."""
    index = FakeIndex()
    for record in records:
        name = record["server_id"]
        told = {key: value for key, value in record.items() if key not in ("server_id", "tokens")}
        put_server(index, name, [tool(f"tool-of-{name}", "does it", record.get("tokens", 10))], name, **told)
    return replace(Catalogue(index, FakeEmbedder(), Ledger(index)), **more)


def shown(page: Page, name: str = "servers") -> str:
    return bytes(render(page, page_name=name, caller=ANYONE).body).decode()


def table(of: Catalogue, caller: Caller = ANYONE, /, **query: str) -> str:
    return shown(servers(PageRequest(caller, caller.scope, of, {}, query)))


def page_of(of: Catalogue, server_id: str, caller: Caller = ANYONE) -> str:
    return shown(server(PageRequest(caller, caller.scope, of, {"server_id": server_id}, {})), "server")


def names(html: str) -> list[str]:
    """Return the names in the table."""
    return re.findall(r'<th scope="row"><a [^>]*><bdi>([^<]*)', html)


def sorted_column(html: str) -> tuple[str, str]:
    """Return the direction and the link of the header by which the table is sorted."""
    (found,) = re.finditer(r'aria-sort="(\w+)"><a href="([^"]*)"', html)
    return found[1], found[2].replace("&amp;", "&")


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


FLEET = (
    {"server_id": "alpha", "tokens": 10, "groups": TEAMS, "labels": {"env": "prod"}, "source": "ci"},
    {
        "server_id": "beta",
        "tokens": 40,
        "groups": TEAMS,
        "source": "toolscale/docker",
        "stale_since": 2.0,
    },
    {"server_id": "gamma", "tokens": 20, "labels": {"env": "test"}, "source": OPERATOR_SOURCE, "last_listed_at": 9.0},
)


# --- the table ---


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"q": "AM"}, ["gamma"]),
        ({"status": "stale"}, ["beta"]),
        ({"group": "team"}, ["beta", "alpha"]),
        ({"group": "tea"}, []),
        ({"label": "env=prod"}, ["alpha"]),
        ({"label": "env"}, ["gamma", "alpha"]),
        ({"label": "env="}, []),
        ({"source": "docker"}, ["beta"]),
        ({"source": "event"}, ["alpha"]),
        ({"source": "mcp.json", "q": "alpha"}, []),
        ({"status": "nonsense", "source": "nonsense", "sort": "nonsense", "order": "up"}, ["beta", "gamma", "alpha"]),
    ],
)
def test_filters_of_the_url_select_servers(query: dict[str, str], found: list[str]) -> None:
    assert names(table(catalogue(*FLEET), **query)) == found


def test_the_form_has_the_filters_and_the_order_of_the_url() -> None:
    html = table(catalogue(*FLEET), q="a", group="team", label="env", source="event", sort="name", order="desc")

    assert re.findall(r'<input[^>]* name="(\w+)" value="([^"]*)"', html) == [
        ("q", "a"),
        ("group", "team"),
        ("label", "env"),
        ("sort", "name"),
        ("order", "desc"),
    ]
    assert '<option value="event" selected>events</option>' in html


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_a_header_sorts_its_column_and_then_turns_it(column: Any) -> None:
    first = table(catalogue(*FLEET), sort=column.name)
    direction, link = sorted_column(first)

    opposite, back = sorted_column(table(catalogue(*FLEET), **dict(parse_qsl(urlsplit(link).query))))

    assert direction == ("descending" if column.descends else "ascending")
    assert {direction, opposite} == {"ascending", "descending"}
    assert "order=" not in back


def test_page_numbers_keep_the_filters_and_leave_out_the_distant_ones() -> None:
    many = catalogue(*({"server_id": f"s{number:04}", "labels": {"env": "prod"}} for number in range(901)))

    html = table(many, label="env=prod", sort="name", page="5")

    links = re.findall(r'href="([^"]*)" aria-label="Page (\d+) of 10"', html)
    assert [int(page) for _, page in links] == [1, 3, 4, 5, 6, 7, 10]
    assert links[0][0] == "/ui/servers?label=env%3Dprod&amp;sort=name&amp;page=1"
    assert html.count("…</span>") == 2
    assert names(html) == [f"s{number:04}" for number in range(400, 500)]


def test_a_caller_with_groups_filters_by_no_label() -> None:
    html = table(catalogue(*FLEET), TEAM, label="env=prod")

    assert names(html) == ["beta", "alpha"]
    assert 'name="label"' not in html
    assert "env" not in text(html)


def test_replicas_that_a_filter_leaves_out_are_not_in_their_row() -> None:
    index = FakeIndex()
    web = [tool("echo", "repeats", 20)]
    for number in range(4):
        state: dict[str, Any] = {"stale_since": 2.0, "last_error": "gone"} if number % 2 else {}
        put_server(index, f"web{number}", web, **state)

    html = table(Catalogue(index, FakeEmbedder(), Ledger(index)), status="stale")

    assert "web1 × 2 web1 stale gone web3 stale gone" in text(html).replace("</bdi>", "")
    assert "web0" not in html


@pytest.mark.parametrize("name", ["q", "group", "label"])
def test_neither_a_filter_nor_a_label_becomes_markup(name: str) -> None:
    hostile = {"server_id": "s", "labels": {HOSTILE: HOSTILE}, "source": HOSTILE}
    html = table(catalogue(*FLEET), **{name: HOSTILE}) + page_of(catalogue(hostile), "s")

    assert "<script" not in html
    assert "\u202e" not in html
    assert "&lt;script&gt;" in html


WORDS = st.text(st.characters(codec="utf-8"), max_size=5).map(str.strip)
QUERIES = st.builds(
    TableQuery,
    q=WORDS,
    status=st.sampled_from(("", *SERVER_STATES)),
    group=WORDS,
    label=WORDS,
    source=st.sampled_from(("", *ORIGINS)),
    sort=st.sampled_from([column.name for column in COLUMNS]),
    order=st.sampled_from(("", "asc", "desc")),
)
RECORDS = st.builds(
    ServerRecord,
    server_id=st.text("ab=", min_size=1, max_size=3),
    endpoint=st.just(Endpoint()),
    groups=st.frozensets(st.sampled_from("ab"), max_size=2),
    labels=st.dictionaries(st.sampled_from("ab="), st.sampled_from(["", "a", "a=b"]), max_size=2),
    source=st.sampled_from(SOURCES),
    status=st.sampled_from(["running", "stopped", "quarantined"]),
    stale_since=st.sampled_from([None, 2.0]),
    last_listed_at=st.sampled_from([None, 1.0, 3.0]),
)


def requested(url: str) -> TableQuery:
    """Return the query of the page at this URL."""
    known = Catalogue(FakeIndex(), FakeEmbedder(), Ledger(FakeIndex()))
    return table_query(PageRequest(ANYONE, ANYONE.scope, known, {}, dict(parse_qsl(urlsplit(url).query))))


@given(QUERIES)
def test_a_link_of_the_table_requests_the_same_table(query: TableQuery) -> None:
    same = requested(query.url())

    assert replace(same, order="") == replace(query, order="")
    assert same.descends == query.descends


@given(QUERIES)
def test_a_header_keeps_the_filters(query: TableQuery) -> None:
    for column in COLUMNS:
        after = requested(query.sorted_by(column))

        assert replace(after, sort="", order="") == replace(query, sort="", order="")
        assert after.sort == column.name
        assert after.descends == (not query.descends if query.sort == column.name else column.descends)


@given(QUERIES.map(lambda query: replace(query, q=query.q[:1])), st.lists(RECORDS, max_size=8))
def test_each_server_that_a_query_admits_is_found_once_and_counted_in_its_state(
    query: TableQuery, records: list[ServerRecord]
) -> None:
    rows = [ServerRow(record, 1, 1) for record in records]

    found, counts = query.applied([SetRow(rows[:3]), SetRow(rows[3:])])

    admitted = [row for row in rows if query.admits(row)]
    shown_rows = [row for of_set in found for row in of_set.rows]
    assert Counter(map(id, shown_rows)) == Counter(id(row) for row in admitted if query.status in ("", row.state))
    assert dict(counts) == Counter(row.state for row in admitted)
    assert all(count for _, count in counts)


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        (OPERATOR_SOURCE, "mcp.json"),
        ("toolscale/docker", "docker"),
        ("toolscale/docker/rack-1", "docker"),
        ("toolscale/kubernetes/prod", "kubernetes"),
        ("toolscale/toolhive", "kubernetes"),
        ("toolscale/dockers", "event"),
        ("toolscale/producers/ci", "event"),
        ("", "event"),
    ],
)
def test_an_origin_is_that_of_the_source(source: str, origin: str) -> None:
    assert origin_of(source) == origin


# --- the page of a server ---


def record(**more: Any) -> ServerRecord:
    return ServerRecord.model_validate({"server_id": "s", "endpoint": Endpoint()} | more)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"status": "stopped", "last_listed_at": 5.0}, NextRun(word="when announced")),
        ({"failures": 2, "next_reconcile_at": 70.0, "last_listed_at": 5.0}, NextRun(70.0)),
        ({"failures": 3, "status": "quarantined"}, NextRun(word="paused after failures")),
        ({}, NextRun(word="soon")),
        ({"last_listed_at": 5.0}, NextRun(305.0, is_latest=True)),
        ({"last_listed_at": 5.0, "endpoint": Endpoint(transport="stdio")}, NextRun(3605.0, is_latest=True)),
    ],
)
def test_the_next_reconciliation_is_that_of_the_record_or_at_most_an_interval_away(
    told: dict[str, Any], expected: NextRun
) -> None:
    known = catalogue(resync_interval_s=300.0, stdio_resync_interval_s=3600.0)

    assert next_run(record(**told), known) == expected
    if expected.is_latest:
        assert next_run(record(**told), catalogue()) == NextRun(word="when announced")


@pytest.mark.parametrize(
    ("error", "split"),
    [
        (None, (None, None)),
        ("s: no connection", ("s: no connection", None)),
        (f's: closed; exit code 1{LAST_WORDS}"no \\"key\\""', ("s: closed; exit code 1", 'no "key"')),
        (f's: answers "x{LAST_WORDS}y" (1)', (f's: answers "x{LAST_WORDS}y" (1)', None)),
    ],
)
def test_the_last_words_of_a_process_are_apart_from_the_error(error: str | None, split: tuple[str, str]) -> None:
    assert split_error(error) == split


def failing(**more: Any) -> dict[str, Any]:
    error = f's: the connection closed; exit code 1{LAST_WORDS}"KeyError: TOKEN"'
    return {"server_id": "s", "stale_since": 2.0, "failures": 3, "last_error": error} | more


def test_a_failing_server_begins_with_the_reason_and_the_last_words_of_its_process() -> None:
    words = text(page_of(catalogue(failing()), "s"))

    places = [words.index(each) for each in ("s: the connection closed", "KeyError: TOKEN", "Failures in a row 3")]
    assert places == sorted(places)


def test_the_log_of_a_server_is_shown_to_an_operator_alone(tmp_path: Path) -> None:
    of = catalogue(failing(endpoint=Endpoint(transport="stdio"), groups=TEAMS))
    starts = (f"{STARTED}{start}\n" + "".join(f"line {start}{number:02}\n" for number in range(8)) for start in "abc")
    log_file(tmp_path, "s").write_text("".join(starts))
    means = Means(log_directory=tmp_path)

    def seen(caller: Caller, *, may_operate: bool) -> str:
        asked = PageRequest(caller, caller.scope, of, {"server_id": "s"}, {}, may_operate=may_operate, means=means)
        return text(shown(server(asked), "server"))

    of_operator, of_team = seen(ANYONE, may_operate=True), seen(TEAM, may_operate=False)

    assert "line c00" in of_operator
    assert "line c07" in of_operator
    assert "line b" not in of_operator  # of the last start alone
    assert "line c" not in of_team
    assert "KeyError: TOKEN" in of_team


def test_the_address_has_no_secret_and_is_shown_to_callers_without_restriction() -> None:
    url = "https://mcp.example.org/team/mcp?api_key=hunter2hunter2"
    known = catalogue({"server_id": "s", "endpoint": Endpoint(url=url), "groups": TEAMS})

    assert "https://mcp.example.org/team/mcp?api_key=***" in page_of(known, "s")
    assert "example.org" not in page_of(known, "s", TEAM)


def test_the_command_is_that_of_the_file_with_masked_secrets(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    args = ["-y", "@acme/files", "--token", "hunter2hunter2", "--region", "${REGION}"]
    config.write_text(json.dumps({"mcpServers": {"s": {"command": "npx", "args": args, "env": {"KEY": "hidden123"}}}}))
    stdio = {"server_id": "s", "endpoint": Endpoint(transport="stdio"), "groups": TEAMS}
    entry = ConfigFile(config, {"REGION": "eu-central"}).entry

    html = page_of(catalogue(stdio | {"source": OPERATOR_SOURCE}, operator_entry=entry), "s")

    assert "<bdi>npx -y @acme/files --token *** --region ${REGION}</bdi>" in html
    assert "hidden123" not in html
    assert "npx" not in page_of(catalogue(stdio | {"source": OPERATOR_SOURCE}, operator_entry=entry), "s", TEAM)
    assert "npx" not in page_of(catalogue(stdio | {"source": "ci"}, operator_entry=entry), "s")


def test_groups_labels_and_source_lead_to_the_servers_that_share_them() -> None:
    html = page_of(catalogue(*FLEET), "alpha")

    assert 'href="/ui/servers?group=team"' in html
    assert 'href="/ui/servers?label=env%3Dprod"' in html
    assert 'href="/ui/servers?source=event"' in html
    assert "env=prod" not in page_of(catalogue(*FLEET), "alpha", TEAM)


def test_the_command_to_reconcile_a_server_is_ready_for_a_shell() -> None:
    assert "toolscale resync &#39;a b;c&#39;" in page_of(catalogue(failing(server_id="a b;c")), "a b;c")


def test_the_link_of_the_longest_label_finds_the_server() -> None:
    labels = {"k" * 200: "v" * 200}
    known = catalogue({"server_id": "s", "labels": labels}, {"server_id": "other"})
    (link,) = re.findall(r'href="/ui/servers\?(label=[^"]*)"', page_of(known, "s"))

    assert names(table(known, **dict(parse_qsl(link)))) == ["s"]


def test_its_callers_are_shown_to_callers_that_may_see_all(usage: Usage) -> None:
    used = {("bob", "s", "a"): 3, ("ann", "s", "a"): 4, ("ann", "s", "b"): 5, ("mallory", "other", "a"): 7}
    usage.add({RowKey(today(), *key): {"answers": 0, "calls": calls} for key, calls in used.items()})
    known = catalogue({"server_id": "s", "groups": TEAMS}, usage=usage)

    words, of_team = text(page_of(known, "s")), page_of(known, "s", TEAM)

    assert "Who calls it Callers and their calls Caller Calls in 30 days ann 9 bob 3 " in words
    assert "mallory" not in words
    assert "Who calls it" not in of_team
    assert "bob" not in of_team
