"""When traces are recorded, and that nothing is loaded for them otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigInvalid
from shared.events import parse_event
from shared.service.tracing import configure_tracing, is_configured, span, traceparent, use_parent_trace
from tests.support.builders import up

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

# what each process loads before it works
OFF = """
import sys
import os
os.environ["REDIS_URL"] = "redis://127.0.0.1:1"  # a worker needs one
import query.__main__, toolscale.embedded.service, workers.app, workers.events_api.__main__
from shared.service.tracing import configure_tracing, span
configure_tracing("test", {})
with span("nothing"):
    pass
# Redis's client loads what the SDK has for metrics, wherever the SDK is installed
assert not [name for name in sys.modules if name.startswith(("opentelemetry.exporter", "opentelemetry.sdk.trace"))]
"""


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": ""}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_asked_for_by_the_standard_variables_alone(environment: dict[str, str], asked: bool) -> None:
    assert is_configured(environment) is asked


def test_a_protocol_that_is_not_spoken_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="expected http/protobuf, got grpc"):
        configure_tracing("test", ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


@pytest.mark.process
def test_without_them_no_process_loads_the_sdk() -> None:
    ran = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, timeout=60, check=False)

    assert ran.returncode == 0, ran.stderr


def test_a_trace_is_passed_on_where_none_is_recorded() -> None:
    assert traceparent() is None
    with use_parent_trace(PARENT), span("nothing"):
        assert traceparent() == PARENT
    with span("nothing", parent=PARENT):
        assert traceparent() == PARENT
    assert traceparent() is None


@given(st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text())))
def test_what_is_no_traceparent_neither_fails_an_event_nor_begins_a_trace(value: object) -> None:
    event = parse_event(up().model_dump(mode="json") | {"traceparent": value})

    assert event.traceparent is None
    with use_parent_trace(value):
        assert traceparent() is None
