"""`toolscale demo` as `make demo` runs it: real third-party servers, and an end by itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from query.catalogue import catalogue_of
from query.tools.list_available_tools import ListRequest, list_tools
from shared.catalog import Scope
from shared.index.versions import open_index_versions
from shared.settings import load_settings
from shared.text.embedding import FastEmbedder
from shared.text.tokens import counter, json_text

ROOT = Path(__file__).parents[2]
TOOLSCALE = str(Path(sys.executable).with_name("toolscale"))

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.index]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def document(directory: Path) -> dict[str, Any]:
    """The output of `toolscale demo --json` on a machine without an earlier run."""
    command = [TOOLSCALE, "demo", "--json", "--directory", str(directory)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def test_every_server_was_listed(document: dict[str, Any]) -> None:
    servers = document["servers"]
    least_servers, least_tools = (8, 58) if shutil.which("node") and shutil.which("npm") else (4, 20)

    assert [server["server"] for server in servers if "error" in server] == []
    assert len(servers) >= least_servers
    assert document["tools"] == sum(server["tools"] for server in servers) >= least_tools
    assert document["tokens"] == sum(server["tokens"] for server in servers) < document["wire_tokens"]


def test_the_token_metrics_of_every_answer_add_up(document: dict[str, Any]) -> None:
    for asked in document["answers"]:
        metrics = asked["answer"]["token_metrics"]
        assert 0 < metrics["returned_tokens"] < metrics["baseline_tokens"] == document["wire_tokens"]
        assert metrics["tokens_saved"] == metrics["baseline_tokens"] - metrics["returned_tokens"]


def test_a_list_of_names_costs_at_most_five_tokens_a_tool(document: dict[str, Any], directory: Path) -> None:
    settings = load_settings(data_dir=directory / "data", redis_url=None, qdrant_url=None)
    versions = open_index_versions(settings, FastEmbedder())
    with closing(versions.store):
        versions.ensure_own_version()
        active, _ = versions.current()
        catalogue = catalogue_of(active.index, active.embedder, settings)
        page = list_tools(ListRequest(), Scope(), catalogue, "test")

    assert sum(len(server["names"].split()) for server in page["toolsByServer"]) == document["tools"]
    assert page["meta"]["context"]["tokens"] == document["tokens"]
    assert counter("cl100k_base")(json_text(page)) <= 5 * document["tools"]


@pytest.mark.parametrize(
    ("question", "server"),
    [("what time is it in Tokyo right now", "time"), ("run an SQL query on a database", "sqlite")],
)
def test_a_question_finds_the_server_it_is_about(document: dict[str, Any], question: str, server: str) -> None:
    answers = {asked["question"]: asked["answer"] for asked in document["answers"]}

    assert answers[question]["tools"][0]["name"].startswith(f"{server}:")
