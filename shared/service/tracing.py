"""Traces by OpenTelemetry, from an event to its points and from a search to the index.

Spans use OpenTelemetry's API, which does nothing until `configure_tracing` finds the standard OTEL_* variables.
A *traceparent* (W3C Trace Context) continues a trace in the next process: in an event, an intent, a task, or a
request over MCP.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.re import parse_env_headers

from shared.errors import ConfigInvalid

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
PROTOCOL = "http/protobuf"

_PARENT = "traceparent"
_carrier = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("toolscale")

SpanKind = trace.SpanKind


def is_configured(environment: Mapping[str, str]) -> bool:
    """Return whether the standard variables enable traces, by an endpoint or by the exporter's name.

    Without an endpoint the exporter sends to its default, a collector on this machine.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER")
    return exporter == "otlp" or (not exporter and any(map(environment.get, ENDPOINTS)))


def configure_tracing(service: str, environment: Mapping[str, str]) -> None:
    """Send this process's spans as the standard OTEL_* variables define; without them the SDK is not loaded.

    The service's name is OTEL_SERVICE_NAME, by default `service`. The process sends waiting spans at its end.

    Raises:
        ConfigInvalid: the extra `otel` is not installed, or the protocol is not OTLP over HTTP.
    """
    if not is_configured(environment):
        return
    if wished := {environment[name] for name in PROTOCOLS if environment.get(name)} - {PROTOCOL}:
        raise ConfigInvalid(f"OTEL_EXPORTER_OTLP_PROTOCOL: expected {PROTOCOL}, got {min(wished)}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise ConfigInvalid(f"traces need the extra otel: pip install 'toolscale[otel]' ({error})") from error
    named = environment.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(resource=Resource.create({"service.name": named}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(headers=_headers(environment))))
    trace.set_tracer_provider(provider)


def _headers(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers of the exporter, which cannot read them once they are withheld from `os.environ`."""
    given = next(filter(None, map(environment.get, HEADERS)), "")
    return parse_env_headers(given, liberal=True)


def flush_spans() -> None:
    """Send waiting spans, for a process that ends without `atexit`, such as a child of a pool."""
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)  # only the SDK's provider has it
    if flush is not None:
        flush()


@contextmanager
def span(
    name: str, parent: str | None = None, kind: SpanKind = SpanKind.INTERNAL, **attributes: str | int
) -> Generator[None]:
    """Record the block as a span below the traceparent `parent`, or below the current span.

    An attribute `server` is recorded as `toolscale.server`. For an error, only its class is recorded.
    """
    named = {f"toolscale.{key}": value for key, value in attributes.items()}
    with _tracer.start_as_current_span(
        name,
        context=_extracted(parent),
        kind=kind,
        attributes=named,
        record_exception=False,
        set_status_on_exception=False,
    ) as opened:
        try:
            yield
        except BaseException as error:
            opened.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise


def record_span(name: str, began_ns: int, ended_ns: int) -> None:
    """Record a past span between two times, in nanoseconds since the epoch."""
    _tracer.start_span(name, start_time=began_ns).end(ended_ns)


def traceparent() -> str | None:
    """Return the traceparent of the current span, None without a span."""
    found: dict[str, str] = {}
    _carrier.inject(found)
    return found.get(_PARENT)


@contextmanager
def use_parent_trace(parent: object) -> Generator[None]:
    """Record spans of the block below this traceparent; an invalid value is ignored."""
    found = _extracted(parent)
    if found is None:
        yield
        return
    token = context.attach(found)
    try:
        yield
    finally:
        context.detach(token)


def _extracted(parent: object) -> context.Context | None:
    if not isinstance(parent, str):
        return None
    found = _carrier.extract({_PARENT: parent})
    return found if trace.get_current_span(found).get_span_context().is_valid else None
