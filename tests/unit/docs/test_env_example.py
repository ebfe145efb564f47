"""`.env.example` and the settings say the same: every name, its default and its meaning."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from pathlib import Path
from typing import cast

import pytest

from shared import settings
from shared.settings import Settings, load_settings

EXAMPLE = (Path(__file__).parents[3] / ".env.example").read_text(encoding="utf-8")

# Read by others than Settings: by Compose, by Flower, and the family of secrets that a `credential_ref` names.
COMPOSE_ALONE = {
    "RUN_AS",
    "NO_PROXY",
    "CONFIG_DIR",
    "CALLERS_DIR",
    "CREDENTIALS_DIR",
    "FLOWER_BASIC_AUTH",
    "WATCH_DOCKER_HOST",
    "WATCH_KUBECONFIG",
}
BESIDE_SETTINGS = {"TOOLSCALE_CREDENTIAL_EXAMPLE", "OTEL_EXPORTER_OTLP_ENDPOINT"} | COMPOSE_ALONE
PLAIN_NAMES = {"redis_url", "qdrant_url", "qdrant_api_key"}
# Settings of any MCP server, by the names that are used for them.
MCP_NAMES = {"response_mode", "max_response_tokens"}


def meanings() -> dict[str, str]:
    """Return the docstring of each setting."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == Settings.__name__
    )
    return {
        field.target.id: str(doc.value.value)
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    }


def variable(field: str) -> str:
    if field in MCP_NAMES:
        return f"MCP_{field.upper()}"
    return field.upper() if field in PLAIN_NAMES else f"TOOLSCALE_{field.upper()}"


def default(field: str) -> str:
    value: object = Settings.model_fields[field].default
    if isinstance(value, frozenset):
        return ",".join(sorted(cast("frozenset[str]", value)))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def block(field: str) -> str:
    """Return the lines that the example must hold for a setting."""
    return f"# {meanings()[field]}\n# {variable(field)}={default(field)}\n"


def listed() -> dict[str, str]:
    """Return the example's assignments."""
    return dict(re.findall(r"^# ([A-Z][A-Z0-9_]+)=(.*)$", EXAMPLE, re.MULTILINE))


@pytest.mark.parametrize("field", sorted(Settings.model_fields))
def test_a_setting_is_listed_with_its_default_below_its_meaning(field: str) -> None:
    assert block(field) in EXAMPLE


def test_nothing_is_listed_that_no_one_reads() -> None:
    assert set(listed()) - {variable(field) for field in Settings.model_fields} == BESIDE_SETTINGS


def test_the_listed_defaults_give_the_default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in listed():
        monkeypatch.delenv(name, raising=False)
    defaults = load_settings()

    for name, value in listed().items():
        monkeypatch.setenv(name, value)

    assert load_settings() == defaults


def test_a_copy_of_the_example_changes_nothing() -> None:
    assert [line for line in EXAMPLE.splitlines() if line and not line.startswith("#")] == []
