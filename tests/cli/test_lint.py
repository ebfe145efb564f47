"""Which rules of `toolscale lint` a definition breaks, and the forms of a report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from shared.catalog import Listing, RejectedTool, ToolDefinition
from shared.errors import ConfigInvalid
from shared.text.embedding import FastEmbedder
from shared.text.tokens import DESCRIPTION, SCHEMA, counter, json_text, model_text
from shared.text.tokens import Field as ToolField
from tests.support.profiles import examples
from toolscale.lint.findings import LEVELS, RULES, Finding, Level, reaches, require_rules, worst_first
from toolscale.lint.rules import LintReport, corpus, lint, size_findings, text_findings
from toolscale.lint.view import as_object, as_sarif, first_file, shorter_as_object, summary

EMBEDDER = FastEmbedder()
READ = "Return the text of a file below the root directory"


def defined(name: str, description: object = READ, **schema: Any) -> ToolDefinition:
    tool = {"name": name, "title": "A title", "description": description, "inputSchema": {"type": "object", **schema}}
    return ToolDefinition.from_wire(json_text(tool))


def reported(*tools: ToolDefinition, **listing: Any) -> LintReport:
    return lint(Listing("files", "2025-11-25", tools, **listing), EMBEDDER)


def broken_by(*tools: ToolDefinition) -> list[tuple[str, str]]:
    return [(finding.rule, finding.place) for finding in reported(*tools).findings]


@pytest.mark.parametrize(
    ("description", "rules"),
    [
        (READ, []),
        ("", ["missing-tool-description"]),
        (" \n", ["missing-tool-description"]),
        (None, ["missing-tool-description"]),
        ("Reads the files.", ["unclear-description"]),
        ("Reads a file of text.", []),
    ],
)
def test_a_description_says_more_than_the_name(description: object, rules: list[str]) -> None:
    assert broken_by(defined("read_file", description)) == [(rule, "read_file") for rule in rules]


PATH: dict[str, Any] = {"type": "string"}


@pytest.mark.parametrize(
    ("parameter", "description", "is_found"),
    [
        (PATH, READ, True),
        (True, READ, True),
        (PATH | {"title": "Path", "description": " "}, READ, True),
        (PATH | {"description": "The file"}, READ, False),
        ({"$ref": "#/$defs/Path"}, READ, False),
        ({"$ref": "#/$defs/Missing"}, READ, True),
        ({"$ref": "#/definitions/Old"}, READ, False),
        ({"$ref": "#/definitions/Path"}, READ, True),
        ({"$ref": "#/$defs/Alias"}, READ, False),
        ({"$ref": "#/$defs/Endless"}, READ, True),
        ({"allOf": [{"$ref": "#/$defs/Path"}], "default": "a"}, READ, False),
        ({"anyOf": [{"description": "A path"}]}, READ, False),
        ({"anyOf": [{"description": "A path"}, {"type": "null"}]}, READ, True),
        ({"anyOf": []}, READ, True),
        ({"properties": {"inner": {"description": "A path"}}}, READ, True),
        (PATH, f"{READ}\n\nArgs:\n    path: The file", False),
        (PATH, f"{READ}\n- `path` (str): The file", False),
        (PATH, f"{READ} at this path: the file", True),
    ],
)
def test_a_required_parameter_is_described_somewhere(parameter: object, description: str, *, is_found: bool) -> None:
    described = {"type": "string", "description": "A path"}
    definitions = {"Path": described, "Alias": {"$ref": "#/$defs/Path"}, "Endless": {"$ref": "#/$defs/Endless"}}
    referred = {"$defs": definitions, "definitions": {"Old": described}}
    tool = defined("read_file", description, properties={"path": parameter}, required=["path"], **referred)

    found = [("missing-parameter-description", "read_file.path")] if is_found else []
    assert [(finding.rule, finding.place) for finding in text_findings(tool)] == found


NAMES = st.sampled_from(["a", "b", "path", "日本", "", "x y"])


@settings(max_examples=examples(50))
@given(st.dictionaries(NAMES, st.booleans()), st.lists(NAMES | st.none() | st.integers()))
def test_exactly_the_required_parameters_without_a_description_are_found(
    is_described: dict[str, bool], required: list[object]
) -> None:
    properties = {name: {"description": "d"} if described else {} for name, described in is_described.items()}

    findings = list(text_findings(defined("t", READ, properties=properties, required=required)))

    missing = [name for name, described in is_described.items() if name in required and not described]
    assert [finding.parameter for finding in findings] == missing


def test_a_tool_like_an_earlier_one_names_the_nearest() -> None:
    listing = defined("list_files", "Return the names of the files in a directory")
    tools = [defined("read_file"), listing, defined("read_text", f"{READ}."), defined("silent", "")]

    found = [finding for finding in reported(*tools).findings if finding.rule == "similar-descriptions"]

    assert [finding.place for finding in found] == ["read_text"]
    assert found[0].message.startswith("like the description of read_file (cosine ")


@pytest.mark.parametrize(("beyond", "level"), [(0, None), (1, "note")])
def test_sizes_beyond_the_percentiles_are_found(beyond: int, level: str | None) -> None:
    sizes = corpus()
    parts = {
        DESCRIPTION: sizes.description.p90 + beyond,
        ToolField("p", is_parameter=True): sizes.parameter.p90 + beyond,
    }
    parts[SCHEMA] = sizes.tool.p90 + beyond - sum(parts.values())

    findings = list(size_findings("t", parts))

    places = [("large-tool", "t"), ("long-description", "t"), ("large-parameter", "t.p")]
    assert [(finding.rule, finding.place) for finding in findings] == (places if level else [])
    assert {finding.level for finding in findings} == ({level} if level else set())


def test_a_size_beyond_the_99th_percentile_is_one_warning() -> None:
    (finding,) = size_findings("t", {SCHEMA: corpus().tool.p99 + 1})

    assert finding.level == "warning"
    assert f"99 % of the corpus have at most {corpus().tool.p99}" in finding.message


def test_a_shorter_definition_is_a_note_and_is_printed() -> None:
    title = {"properties": {"path": {"title": "Path", "type": "string", "description": "The file"}}}
    zones = {"properties": {"zone": {"enum": [f"zone-{number}" for number in range(21)]}}}
    tools = [defined("read_file", **title), defined("list_zones", "Return all zones of the world", **zones)]

    report = reported(*tools)

    first, second = (finding for finding in report.findings if finding.rule == "leaner-definition")
    assert (first.level, first.place, second.place) == ("note", "read_file", "list_zones")
    saved = report.shorter[0].saved
    assert first.message == f"{saved} tokens less without titles that repeat names ({saved})"
    assert second.message == f"long enums take {report.shorter[1].enums} tokens"
    assert as_object(report)["leaner_by"] == saved > 0
    (shown,) = shorter_as_object(report)
    assert shown["inputSchema"]["properties"] == {"path": {"type": "string", "description": "The file"}}
    assert counter("cl100k_base")(model_text(tools[0])) - saved == counter("cl100k_base")(
        model_text(ToolDefinition.from_wire(json_text(shown)))
    )


def test_the_finding_names_the_sentences_that_a_shorter_definition_lacks() -> None:
    warning = "Never call this tool without a confirmation."
    texts = ("Return the text of a file.", "Send a letter to a person.", "Count all rows of a table.")
    tools = [defined(f"tool_{number}", f"{text} {warning}") for number, text in enumerate(texts)]

    report = reported(*tools)

    messages = [finding.message for finding in report.findings if finding.rule == "leaner-definition"]
    assert len(messages) == len(tools)
    assert all(message.endswith(f"); for the server's instructions: {warning}") for message in messages)


def test_rejected_and_marked_tools_are_findings() -> None:
    rejected = (RejectedTool(name="odd", reason="inputSchema: missing"),)

    findings = reported(defined("read_file"), rejected=rejected, marked=("read_file",)).findings

    assert [(finding.rule, finding.tool, finding.message) for finding in findings] == [
        ("invalid-tool", "odd", "inputSchema: missing"),
        ("invisible-characters", "read_file", "a model sees marks in their places"),
    ]


def test_an_ignored_rule_has_no_finding() -> None:
    listing = Listing("files", "2025-11-25", (defined("read_file", ""),))

    assert lint(listing, EMBEDDER, {"missing-tool-description"}).findings == ()


def test_a_misspelt_rule_is_refused() -> None:
    require_rules(RULES)
    with pytest.raises(ConfigInvalid, match=r"'large-tools'; known: large-tool$"):
        require_rules(["large-tools"])


@given(st.lists(st.sampled_from(LEVELS)), st.sampled_from(LEVELS))
def test_the_worst_findings_come_first_and_decide(levels: list[Level], limit: Level) -> None:
    findings = worst_first(Finding("large-tool", level, str(number), "") for number, level in enumerate(levels))

    ranks = [LEVELS.index(finding.level) for finding in findings]
    assert ranks == sorted(ranks, reverse=True)
    assert reaches(findings, limit) == any(rank >= LEVELS.index(limit) for rank in ranks)


def test_the_report_has_the_tokens_of_the_model_form() -> None:
    tool = defined("read_file", properties={"path": PATH})

    report = reported(tool)

    document = json.loads(json.dumps(as_object(report)))
    (shown,) = document["tools"]
    assert shown["tokens"] == sum(shown["parts"].values()) == document["tokens"]
    assert document["tokens"] == counter("cl100k_base")(model_text(tool))
    assert shown["parts"].keys() == {"name", "description", "parameter:path", "inputSchema", "rest"}
    assert "150 tools of 11 public servers" in summary(report)


class Part(BaseModel):
    """A part of SARIF 2.1.0: section 3 of the standard. Unknown members would be an error of ours."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Text(Part):
    text: str = Field(min_length=1)


class Configuration(Part):
    level: Literal["none", "note", "warning", "error"]


class Rule(Part):
    id: str
    shortDescription: Text  # noqa: N815  # names of the standard
    defaultConfiguration: Configuration  # noqa: N815


class Driver(Part):
    name: str
    version: str
    rules: list[Rule]


class Tool(Part):
    driver: Driver


class Artifact(Part):
    uri: str = Field(pattern=r"^[A-Za-z0-9._~/%-]+$")


class Region(Part):
    startLine: int = Field(ge=1)  # noqa: N815


class Physical(Part):
    artifactLocation: Artifact  # noqa: N815
    region: Region


class Logical(Part):
    fullyQualifiedName: str  # noqa: N815
    kind: Literal["function", "parameter"]


class Location(Part):
    physicalLocation: Physical  # noqa: N815
    logicalLocations: list[Logical] = Field(min_length=1)  # noqa: N815


class Result(Part):
    ruleId: str  # noqa: N815
    ruleIndex: int = Field(ge=0)  # noqa: N815
    level: Literal["none", "note", "warning", "error"]
    message: Text
    locations: list[Location] = Field(min_length=1)
    partialFingerprints: dict[str, str]  # noqa: N815


class Run(Part):
    tool: Tool
    results: list[Result]


class Sarif(Part):
    schema_: str = Field(alias="$schema")
    version: Literal["2.1.0"]
    runs: list[Run] = Field(min_length=1)


FINDINGS = st.builds(
    Finding,
    rule=st.sampled_from(sorted(RULES)),
    level=st.sampled_from(LEVELS),
    tool=st.text(),
    message=st.text(min_size=1),
    parameter=st.none() | st.text(),
)


@given(st.lists(FINDINGS, max_size=5), st.sampled_from(["mcp.json", "src/my server.py", "é#?.py"]))
def test_the_sarif_log_has_the_structure_of_the_standard(findings: list[Finding], source: str) -> None:
    report = LintReport("files", {}, tuple(findings))

    (run,) = Sarif.model_validate_json(json.dumps(as_sarif(report, source))).runs

    assert [run.tool.driver.rules[result.ruleIndex].id for result in run.results] == [
        finding.rule for finding in findings
    ]
    assert [result.level for result in run.results] == [finding.level for finding in findings]


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ((".venv/bin/python", "server.py"), "server.py"),
        (("bin/python", "./src/../server.py"), "server.py"),
        ((".venv/bin/my-server",), None),
        (("bin/python", "-m", "my_server"), None),
        (("./server.py", "other.json"), "server.py"),
        (("node", "../outside.js"), None),
        (("x" * 5000,), None),
    ],
    ids=str,
)
def test_the_file_of_a_command_is_its_first_text_in_the_tree(
    command: tuple[str, ...], source: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    texts = ("server.py", "other.json", "../outside.js", "src/a.py", ".venv/bin/my-server", ".venv/pyvenv.cfg")
    for name, content in {"bin/python": b"\x7fELF\0", **dict.fromkeys(texts, b"text")}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    (tree / ".venv" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tree)

    assert first_file(command) == source


def test_findings_of_one_line_have_fingerprints_of_their_own() -> None:
    places: list[tuple[str, str | None]] = [("a", None), ("b", None), ("a", "x"), ("a", "y")]
    findings = tuple(Finding("large-tool", "note", tool, "m", parameter) for tool, parameter in places)

    (run,) = as_sarif(LintReport("files", {}, findings), "mcp.json")["runs"]

    fingerprints = {result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]}
    assert len(fingerprints) == len(places)
    names = [result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for result in run["results"]]
    assert names == ["files/a", "files/b", "files/a/x", "files/a/y"]
