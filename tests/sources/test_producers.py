from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from shared.catalog import PRODUCER_PREFIX
from shared.errors import AuthenticationFailed, ConfigInvalid, EventInvalid
from shared.events import ServerAnnouncement, ServerEvent, ServerUp
from shared.service.token_file import TokenFile, digest
from tests.support.builders import changed, down, up
from toolscale.app import app
from workers.emit import ANYONE, without_rights
from workers.events_api.producers import Producer, ProducerRights, Producers

CI = Producer(
    "ci",
    ProducerRights(
        sha256=digest("of ci"),
        id_prefixes=frozenset({"ci/", "build-"}),
        hosts=frozenset({"*.ci.lan", "10.1.0.0/16", "fd00::/8"}),
        groups=frozenset({"ci", "dev"}),
        credentials=frozenset({"ci-token"}),
    ),
)


def announced(server_id: str = "ci/a", url: str | None = "http://a.ci.lan/mcp", **more: Any) -> ServerUp:
    return ServerUp(data=ServerAnnouncement(server_id=server_id, url=url, **more))


@pytest.mark.parametrize(
    "event",
    [
        announced(),
        announced("build-1", "https://10.1.2.3:9000/mcp", groups=frozenset({"dev"}), credential_ref="ci-token"),
        announced(url="http://[fd00::1]/"),
        announced(url=None, transport="stdio"),
        changed("ci/a"),
        down("build-7"),
    ],
)
def test_an_event_within_the_rights_gets_the_source_of_its_producer(event: ServerEvent) -> None:
    admitted = CI.admit(event.model_copy(update={"source": "toolscale/mcp.json"}))

    assert admitted == event.model_copy(update={"source": f"{PRODUCER_PREFIX}ci"})


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (announced("payments"), "data.server_id"),
        (announced("xci/a"), "data.server_id"),
        (changed("payments"), "data.server_id"),
        (down("payments"), "data.server_id"),
        (announced(groups=frozenset({"ci", "finance"})), "data.groups"),
        (announced(url="http://evil.example.org/"), "data.url"),
        (announced(url="http://ci.lan/"), "data.url"),
        (announced(url="http://a.ci.lan.evil.org/"), "data.url"),
        (announced(url="http://10.2.0.1/"), "data.url"),
        (announced(url="http://[::ffff:10.2.0.1]/"), "data.url"),
        (announced(url="http://10.1/"), "data.url"),
        (announced(credential_ref="payments"), "data.credential_ref"),
    ],
)
def test_an_event_beyond_the_rights_is_rejected_with_its_field(event: ServerEvent, field: str) -> None:
    with pytest.raises(EventInvalid, match=f"^{field}: .*producer ci") as caught:
        CI.admit(event)

    assert caught.value.field == field


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/@-]{0,20}", fullmatch=True), st.sampled_from(["up", "down", "changed"]))
def test_no_event_names_a_server_outside_the_prefixes(server_id: str, kind: str) -> None:
    events: dict[str, ServerEvent] = {
        "up": announced(server_id),
        "down": down(server_id),
        "changed": changed(server_id),
    }
    try:
        admitted = CI.admit(events[kind])
    except EventInvalid:
        assert not server_id.startswith(("ci/", "build-"))
    else:
        assert admitted.data.server_id.startswith(("ci/", "build-"))


@pytest.mark.parametrize("source", ["toolscale/mcp.json", "toolscale/producers/ci", "toolscale/producers/"])
def test_a_sender_without_rights_cannot_use_the_source_of_an_owner(source: str) -> None:
    with pytest.raises(EventInvalid, match=r"^source: .* is reserved"):
        without_rights(up().model_copy(update={"source": source}))


def written(path: Path, **producers: Producer) -> TokenFile[ProducerRights]:
    path.write_text("\n\n".join(producer.rights.table(name) for name, producer in producers.items()))
    return TokenFile(path, ProducerRights)


def test_a_token_leads_to_its_producer_until_it_leaves_the_file(tmp_path: Path) -> None:
    producers = Producers("the-token-for-everything", written(tmp_path / "producers.toml", ci=CI))

    assert producers.authenticate("the-token-for-everything") is ANYONE
    assert producers.authenticate("of ci").admit(announced()).source == f"{PRODUCER_PREFIX}ci"
    for wrong in ("", "another"):
        with pytest.raises(AuthenticationFailed):
            producers.authenticate(wrong)

    (tmp_path / "producers.toml").write_text("")

    with pytest.raises(AuthenticationFailed):
        producers.authenticate("of ci")


@pytest.mark.parametrize("table", ["", "id_prefixes = []", 'id_prefixes = ["*"]', 'hosts = ["a b"]', "unknown = 1"])
def test_a_table_without_valid_rights_is_refused(tmp_path: Path, table: str) -> None:
    path = tmp_path / "producers.toml"
    replaced = {table.partition(" ")[0]} if table else {"hosts"}
    kept = [line for line in CI.rights.table("ci").splitlines() if line.partition(" ")[0] not in replaced]
    path.write_text("\n".join([*kept, table]))

    with pytest.raises(ConfigInvalid):
        TokenFile(path, ProducerRights)


def test_the_command_prints_a_token_and_its_table(tmp_path: Path) -> None:
    arguments = ["--id-prefixes", "ci/, build-", "--hosts", "*.ci.lan", "--groups", "ci", "--credentials", "ci-token"]

    token, _, table = CliRunner().invoke(app, ["token", "producer", "ci", *arguments]).stdout.partition("\n")

    (tmp_path / "p").write_text(table)
    admit = Producers(None, TokenFile(tmp_path / "p", ProducerRights)).authenticate(token).admit
    event = announced(groups=frozenset({"ci"}), credential_ref="ci-token")
    assert admit(event).source == f"{PRODUCER_PREFIX}ci"
    assert token not in table


def test_the_command_refuses_invalid_rights() -> None:
    made = CliRunner().invoke(app, ["token", "producer", "ci", "--id-prefixes", "*", "--hosts", "a"])

    assert isinstance(made.exception, ConfigInvalid)
    assert made.stdout == ""
