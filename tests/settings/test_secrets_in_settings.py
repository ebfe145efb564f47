"""Secrets leave the environment after the settings were read, and are still there for those who read them later."""

from __future__ import annotations

import os

import pytest

from shared.service import process
from shared.service.process import full_environment, withhold_secrets
from shared.settings import load_settings

SECRETS = {
    "REDIS_URL": "redis://:password@redis:6379/0",
    "REDIS_PASSWORD": "password",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=a-token",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=another-token",
    "TOOLSCALE_QDRANT_API_KEY": "a-key",
    "toolscale_events_token": "t" * 16,
    "TOOLSCALE_CREDENTIAL_GITHUB": "a-token",
}


@pytest.fixture(autouse=True)
def withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_withheld", {})
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TOOLSCALE_PORT", "1234")
    settings = load_settings()
    withhold_secrets()
    assert settings.events_token == "t" * 16


def test_no_secret_stays_in_the_environment_and_other_settings_do() -> None:
    assert SECRETS.keys().isdisjoint(os.environ)
    assert os.environ["TOOLSCALE_PORT"] == "1234"


def test_the_full_environment_has_the_withheld_secrets() -> None:
    environment = full_environment()

    assert SECRETS.items() <= dict(environment).items()
    assert environment["TOOLSCALE_PORT"] == "1234"


def test_a_second_call_keeps_the_secrets_of_the_first() -> None:
    withhold_secrets()

    assert full_environment()["TOOLSCALE_QDRANT_API_KEY"] == "a-key"
