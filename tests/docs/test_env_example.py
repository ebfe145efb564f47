"""`.env.example` has only variables that are read, and a copy of it changes nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.settings import Settings, load_settings
from tests.support.reference.settings import variable

EXAMPLE = (Path(__file__).parents[2] / ".env.example").read_text(encoding="utf-8")

# Read by others than Settings: by Compose, by Flower, and the family of secrets that a `credential_ref` names.
COMPOSE_ALONE = {
    "RUN_AS",
    *(f"{name}_IMAGE" for name in ("PYTHON", "REDIS", "QDRANT", "PROMETHEUS", "GRAFANA")),
    "NO_PROXY",
    "CONFIG_DIR",
    "CALLERS_DIR",
    "CREDENTIALS_DIR",
    "FLOWER_BASIC_AUTH",
    "REDIS_PASSWORD",
    "WATCH_DOCKER_HOST",
    "WATCH_KUBECONFIG",
}
BESIDE_SETTINGS = {"TOOLSCALE_CREDENTIAL_EXAMPLE", "OTEL_EXPORTER_OTLP_ENDPOINT"} | COMPOSE_ALONE


def listed() -> dict[str, str]:
    """Return the example's assignments."""
    return dict(re.findall(r"^# ([A-Z][A-Z0-9_]+)=(.*)$", EXAMPLE, re.MULTILINE))


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
