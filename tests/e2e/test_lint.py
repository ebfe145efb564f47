"""`toolscale lint` as a person or CI starts it: a real process and a real server, by command, URL and name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recount_numbers import tokens_by_form
from tests.e2e.test_costs import entry, environment_of
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.processes import scripted_stdio
from tests.support.hostile.scripted_http import scripted_http
from tests.support.hostile.scripts import plays
from tests.support.warm import run

pytestmark = pytest.mark.process

CLEAN = tool("read_file", "Return the text of a file below the root directory")
UNDESCRIBED: dict[str, Any] = {
    "name": "write_file",
    "description": "Replace a text by another one, and keep a backup",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def lint(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "toolscale", "lint", *arguments], env=environment_of(home), cwd=home)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with scripted_http(plays(one_page(CLEAN, UNDESCRIBED))) as server:
        yield server.url


def test_a_clean_server_ends_with_0_and_writes_no_data(tmp_path: Path) -> None:
    target = scripted_stdio("good")

    done = lint(tmp_path, "--json", "--fail-on", "note", "--", target.command, *target.args)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert report["tokens"] == tokens_by_form([tool("one")])["generic"]
    assert not (tmp_path / "data").exists()


def test_a_finding_is_shown_and_ends_with_1(tmp_path: Path, url: str) -> None:
    done = lint(tmp_path, "--url", url)

    assert done.returncode == 1, done.stderr
    (finding,) = (line.split(maxsplit=3) for line in done.stdout.splitlines() if line.lstrip().startswith("warning"))
    message = "it has no description"
    assert [*finding[:3], finding[3].strip()] == [
        "warning", "write_file.path", "missing-parameter-description", message
    ]  # fmt: skip
    assert "2 tools, " in done.stdout
    assert "0 errors, 1 warnings, 0 notes" in done.stdout


def test_leaner_prints_shorter_definitions_alone(tmp_path: Path) -> None:
    schema: dict[str, Any] = {"type": "object", "title": "read_fileArguments", "properties": {}}
    titled = {**CLEAN, "inputSchema": schema}
    with scripted_http(plays(one_page(titled, UNDESCRIBED))) as server:
        done = lint(tmp_path, "--url", server.url, "--leaner", "--fail-on", "error")

    assert done.returncode == 0, done.stderr
    (shorter,) = json.loads(done.stdout)
    assert shorter == {**CLEAN, "inputSchema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("options", [("--fail-on", "error"), ("--ignore", "missing-parameter-description")])
def test_a_finding_below_the_level_or_of_an_ignored_rule_ends_with_0(
    tmp_path: Path, url: str, options: tuple[str, str]
) -> None:
    assert lint(tmp_path, "--url", url, *options).returncode == 0


def test_a_server_of_an_mcp_json_is_read_by_its_name_alone(tmp_path: Path, url: str) -> None:
    servers = {"docs": {"url": url}, "dead": entry(scripted_stdio("dies_at_start")), "off": {"disabled": True}}
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")

    done = lint(tmp_path, "--server", "docs", "--config", str(config), "--json")

    assert done.returncode == 1, done.stderr
    assert [found["tool"] for found in json.loads(done.stdout)["findings"]] == ["write_file"]
    for name, reason in (("doc", "did you mean docs?"), ("dead", "out of cheese"), ("off", "it is disabled")):
        failed = lint(tmp_path, "--server", name, "--config", str(config))
        assert (failed.returncode, failed.stdout) == (2, "")
        assert reason in failed.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "http://127.0.0.1:1/mcp"),
        ("--url", "ftp://x"),
        ("--fail-on", "never", "--", "true"),
        ("--ignore", "no-such-rule", "--", "true"),
        ("--", "no-such-program-of-toolscale"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_or_an_unreadable_server_ends_with_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = lint(tmp_path, *arguments)

    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--url", "http://127.0.0.1:1/mcp", "--server", "docs")], ids=" ".join)
def test_not_exactly_one_target_ends_with_2_and_the_ways_to_name_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = lint(tmp_path, *arguments)

    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "a command after `--`, --url and --server" in " ".join(done.stderr.split())


def test_sarif_without_a_known_file_requires_one_before_the_server_starts(tmp_path: Path, url: str) -> None:
    for target in (("--url", url), ("--", sys.executable, "-m", "no_such_module"), ("--server", "docs")):
        done = lint(tmp_path, "--sarif", "a.sarif", *target)

        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert "--sarif: no file of the server is known; name it with --source" in " ".join(done.stderr.split())
        assert not (tmp_path / "a.sarif").exists()


def test_leaner_names_the_sentences_that_it_removes(tmp_path: Path) -> None:
    warning = "Never call this tool without a confirmation."
    texts = ("Return the text of a file.", "Send a letter to a person.", "Count all rows of a table.")
    tools = [{**tool(f"tool_{number}"), "description": f"{text} {warning}"} for number, text in enumerate(texts)]
    with scripted_http(plays(one_page(*tools))) as server:
        done = lint(tmp_path, "--url", server.url, "--leaner", "--fail-on", "error")

    assert [shown["description"] for shown in json.loads(done.stdout)] == list(texts)
    assert done.stderr.count(f"For the server's instructions: {warning}") == 1


def test_the_sarif_file_names_the_program_of_the_server_or_the_given_file(tmp_path: Path, url: str) -> None:
    script = scripted_stdio("mixed").args[0]
    program = tmp_path / "src" / "server.py"
    program.parent.mkdir()
    program.write_text(f"import runpy\nrunpy.run_path({script!r}, run_name='__main__')\n", encoding="utf-8")

    assert lint(tmp_path, "--sarif", "a.sarif", "--", sys.executable, "src/server.py", "mixed").returncode == 1
    assert lint(tmp_path, "--url", url, "--sarif", "b.sarif", "--source", "main.py").returncode == 1
    (tmp_path / "x.json").write_text(json.dumps({"mcpServers": {"docs": {"url": url}}}), encoding="utf-8")
    named = lint(tmp_path, "--server", "docs", "--config", "x.json", "--sarif", "c.sarif")
    assert named.returncode == 1, named.stderr

    assert _source(tmp_path / "a.sarif") == {"src/server.py"}
    assert _source(tmp_path / "b.sarif") == {"main.py"}
    assert _source(tmp_path / "c.sarif") == {"x.json"}


def _source(path: Path) -> set[str]:
    (log,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in log["results"]]
    return {place["artifactLocation"]["uri"] for place in places}
