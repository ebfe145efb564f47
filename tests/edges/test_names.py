# ruff: noqa: RUF001  # characters that look alike are the point
"""Names of servers in any script: two names never become one id, and an id passes wherever ids go."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from typer.testing import CliRunner

from shared.events import ServerId, parse_event
from shared.server_ids import LONGEST, server_id
from shared.toolset import Toolset
from shared.upstream.mcp_json import config_of
from tests.e2e.test_serve import serving
from tests.support.client_homes import Write
from tests.support.hostile.processes import callable_stdio
from tests.support.waiting import eventually
from toolscale.app import app

CAFE = "caf\u00e9"
NAMES = (
    *(
        "Notizen über alles",
        "日本語",
        "中文",
        "почта",
        "pochta",
        "mаil",
        "mail",
        "ｍａｉｌ",
        "Straße",
        "STRASSE",
        "Strasse",
    ),
    *("İstanbul", "istanbul", "ıstanbul", "मेल सर्वर", "อีเมล", "דואר", "بريد", "می\u200cخواهم", "메일", CAFE),
    *("🚀", "🔥", "🚀 mail", "👩‍💻", "👩💻", "👩\u200d💻\ufe0f", "❤", "❤️", "！！！", "？？？", "…", "—"),
    *(
        "mail\u202e",
        "\u202email",
        "mail\u200b",
        "ma\u00adil",
        "\u3164",
        "\uffa0",
        "a\u034fb",
        "a\ufe0fb",
        "ab",
        "１２",
        "12",
    ),
    *(
        "１２",
        "12",
        "Strasse",
        "a" * 200,
        "é" * 400,
        "é" * 401,
        "日" * 201,
        "\ud83d",
        "\ud83e",
        "e" + "\u0301" * 3,
        "\u0301x",
    ),
)

ids = TypeAdapter(ServerId)
names = st.text(max_size=30) | st.sampled_from(NAMES) | st.text(st.sampled_from("aé е\u0301\u200d🚀ß-:日"), max_size=6)


def former_id(name: str) -> str:
    """Return the id that an installation has for a name in ASCII."""
    return re.sub(r"[^A-Za-z0-9._/@-]+", "-", name).strip("-._/@") or "server"


def test_names_of_the_list_have_ids_of_their_own() -> None:
    found = config_of({name: {"command": "x"} for name in NAMES}, {})

    assert found.problems == ()
    assert len(found.targets) == len(set(NAMES))


@given(st.lists(names, unique=True, max_size=8))
@example([CAFE, unicodedata.normalize("NFD", CAFE)])
@example(["My Server", "My:Server"])
@example(["!!!", "???"])
@example(["\u2126", "\u03a9"])  # ohm, and omega
def test_each_name_has_an_id_of_its_own_or_is_refused_with_both_names(written: list[str]) -> None:
    found = config_of({name: {"command": "x"} for name in written}, {})

    assert len(found.targets) + len(found.problems) == len(written)
    assert len({problem.server_id for problem in found.problems} | found.targets.keys()) == len(written)
    for problem in found.problems:
        assert any(repr(name) in problem.reason for name in written if name != problem.name)
    assert {ids.validate_python(each) for each in found.targets} == found.targets.keys()


@given(names)
def test_an_id_is_stable_valid_and_its_own_id(name: str) -> None:
    found = server_id(name)

    assert ids.validate_python(found) == found == server_id(found)
    assert 1 <= len(found) <= LONGEST
    assert found.isprintable()
    assert Toolset.model_validate({"name": "t", "tools": [found, f"{found}:a:b"]}).selection.servers == {found}


@given(st.text(st.characters(max_codepoint=127), max_size=LONGEST))
def test_ids_of_names_in_ascii_are_those_of_existing_installations(name: str) -> None:
    assert server_id(name) == former_id(name)


@pytest.mark.parametrize("name", ["日本語", CAFE, "почта", "מייל", "메일", "Straße"])
def test_a_name_of_letters_is_its_own_id(name: str) -> None:
    assert server_id(name) == name == server_id(unicodedata.normalize("NFD", name))


def test_the_name_of_a_server_is_kept_as_its_operator_wrote_it() -> None:
    found = config_of({"🚀 mail": {"command": "x"}, "日本": {"command": "x"}}, {})

    assert [announcement.labels.get("name") for announcement in found.announcements] == ["🚀 mail", None]


@pytest.mark.parametrize(
    "text", ["", "a b", "a:b", "🚀", "mail\u200b", "\u3164", "\u0301x", "-a", "a" * 201, "a\nb", "\ud83d"]
)
def test_an_event_with_another_id_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        ids.validate_python(text)


def test_an_event_in_another_normal_form_is_of_the_same_server() -> None:
    event = parse_event(
        {
            **{"specversion": "1.0", "id": "1", "source": "test", "type": "dev.toolscale.server.down"},
            "data": {"server_id": unicodedata.normalize("NFD", CAFE)},
        }
    )

    assert event.data.server_id == CAFE


def test_an_addition_keeps_the_name_and_a_removal_takes_the_name_that_is_written(home: Path, write: Write) -> None:
    write("data/mcp.json", json.dumps({"mcpServers": {"My Server": {"command": "x"}, "My:Server": {"command": "y"}}}))

    def servers(*arguments: str) -> list[str]:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return list(json.loads((home / "data" / "mcp.json").read_text())["mcpServers"])

    assert servers("remove", "My:Server") == ["My Server"]
    assert servers("add", "🚀 mail", "--", "z") == ["My Server", "🚀 mail"]
    assert servers("add", "🚀 mail", "--", "z") == ["My Server", "🚀 mail"]
    assert servers("remove", server_id("🚀 mail")) == ["My Server"]


LISTED = ("日本語", "🚀 mail", CAFE, "مرحبا", "a" * 220)


@pytest.mark.process
@pytest.mark.slow
def test_a_service_lists_shows_finds_and_calls_servers_with_such_names(tmp_path: Path) -> None:
    target = callable_stdio()
    entry = {"command": target.command, "args": list(target.args)}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {name: entry for name in LISTED}}), encoding="utf-8")

    def command(*arguments: str) -> str:
        program = [sys.executable, "-m", "toolscale", *arguments, "--data-dir", str(tmp_path)]
        return subprocess.run(program, check=True, capture_output=True, text=True, encoding="utf-8", timeout=60).stdout

    def rows() -> dict[str, dict[str, Any]]:
        return {row["server_id"]: row for row in json.loads(command("ls", "--json"))}

    with serving(path) as (_, url):
        eventually(lambda: [row["state"] for row in rows().values()] == ["listed"] * len(LISTED))
        assert {row["name"] for row in rows().values()} == {name[:LONGEST] for name in LISTED}
        tool = json.loads(command("show", server_id(LISTED[0]), "--json"))["tools"][0]["name"]
        for own_id in map(server_id, LISTED):
            command("logs", own_id)
            page = httpx2.get(url.removesuffix("/mcp") + f"/ui/servers/{quote(own_id, safe='')}", trust_env=False)
            assert page.status_code == 200
            assert own_id in page.text
            command("call", f"{own_id}:{tool}")  # fails with the call
