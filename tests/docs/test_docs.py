"""The documents agree with the code: errors, targets, commands, settings, events, links."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import typer
from typer.core import TyperGroup

from shared import errors
from shared.events import EventType, parse_event
from shared.settings import REMOVED, Settings
from toolscale.app import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path for folder, pattern in (("", "*.md"), ("docs", "**/*.md"), ("benchmarks", "**/*.md"))
    for path in (ROOT / folder).glob(pattern)
)  # fmt: skip

# what is true now: the changelog names removed commands and settings too
NOW = [each for each in DOCUMENTS if each.name != "CHANGELOG.md"]
CHART = ROOT / "deploy" / "helm" / "toolscale"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fences(document: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [body for found, body in _FENCE.findall(document) if found == language]


def code_of(document: str) -> list[str]:
    """Return what a document shows as shell code: the lines of its blocks, those behind a prompt, its inline code."""
    inline: list[str] = re.findall(r"`([^`\n]+)`", _FENCE.sub("", document))
    prompted: list[str] = re.findall(r"^\$ (.+)", document, re.MULTILINE)
    return [line for block in fences(document, "sh") for line in block.splitlines()] + prompted + inline


# --- errors ---


def test_the_tree_of_errors_names_every_error_below_the_action_of_a_caller() -> None:
    drawn: dict[str, set[str]] = {}
    for branch, indent, name in re.findall(r"^    ([├└│ ])(──|   [├└]──) (\w+)", str(errors.__doc__), re.MULTILINE):
        if indent == "──" and branch in "├└":
            drawn[name] = set()
        else:
            drawn[list(drawn)[-1]].add(name)

    assert drawn == {
        kind.__name__: {leaf.__name__ for leaf in _leaves(kind)} for kind in (errors.Retryable, errors.Permanent)
    }


def _leaves(kind: type) -> list[type]:
    return [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, kind) and error != kind
    ]


# --- commands and targets ---


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_make_target_in_a_document_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    used = [match for line in code_of(text_of(named(document))) for match in re.findall(r"^make ([a-z-]+)", line)]

    assert [target for target in used if target not in targets] == []


@pytest.mark.parametrize("document", [*NOW, CHART / "README.md"], ids=named)
def test_every_toolscale_command_in_a_document_can_be_parsed(document: Path) -> None:
    for command in commands_in(code_of(text_of(named(document)))):
        _follow(command.split())


def test_every_toolscale_command_in_the_notes_of_the_chart_can_be_parsed() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")

    for command in commands_in(notes.splitlines()):
        _follow(command.split())


def commands_in(lines: list[str]) -> list[str]:
    """Return the arguments of each whole call of `toolscale`, also in a container."""
    called = re.compile(r"(?:^|exec (?:worker|query) |-- )toolscale ([a-z].*)")
    return [found[1] for line in lines if "…" not in line and (found := called.search(line))]


def _follow(arguments: list[str]) -> None:
    """Walk the arguments down to a command; fails where a name, or an option that is given, is unknown."""
    command = typer.main.get_command(app)
    while isinstance(command, TyperGroup) and arguments:
        name, *arguments = arguments
        assert name in command.commands, f"no command {name!r}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    assert {argument for argument in arguments if argument.startswith("--")} <= known, arguments


# --- settings ---

VARIABLE = re.compile(r"\bTOOLSCALE_[A-Z_]+[A-Z]\b")


@cache
def variables_read() -> set[str]:
    """Return the variables of the environment that the product, or its composition, reads."""
    packages = ("query", "shared", "toolscale", "workers")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in (*sources, ROOT / "docker-compose.yml")]
    settings = {f"TOOLSCALE_{name.upper()}" for name in Settings.model_fields}
    return settings.union(*map(VARIABLE.findall, texts)) - set(REMOVED)


@pytest.mark.parametrize("document", NOW, ids=named)
def test_every_setting_in_a_document_is_read(document: Path) -> None:
    named_here = {name for name in VARIABLE.findall(text_of(named(document))) if "_CREDENTIAL_DOCS_" not in name}

    assert named_here - variables_read() == set()


# --- events ---


def test_the_examples_of_events_are_accepted_and_cover_every_type() -> None:
    examples = [parse_event(block) for block in fences(text_of("docs/events.md"), "json")]

    assert {example.type for example in examples} == set(get_args(EventType))


def test_the_python_example_sends_an_event_that_is_accepted() -> None:
    (example,) = fences(text_of("docs/events.md"), "python")

    assert parse_event(_assigned(example, "event")).data.server_id == "docs"


def _assigned(code: str, name: str) -> dict[str, Any]:
    (value,) = (
        node.value
        for node in ast.parse(code).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return cast("dict[str, Any]", json.loads(json.dumps(ast.literal_eval(value))))


# --- links and pages ---


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    assert [link for link in _relative_links(document) if not _leads_somewhere(document, link)] == []


def _relative_links(document: Path) -> Iterator[str]:
    prose = _FENCE.sub("", text_of(named(document)))
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"[a-z]+:", link):
            yield link


def _leads_somewhere(document: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(document: Path) -> set[str]:
    headings: list[str] = re.findall(r"^#+ (.+)$", text_of(named(document.resolve())), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
