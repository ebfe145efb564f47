"""A collector of traces: OTLP over HTTP on a loopback port, kept in memory."""

from __future__ import annotations

import gzip
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.http_thread import SilentHandler, served


@dataclass(frozen=True)
class Span:
    """A span as it was sent; ids in hexadecimal."""

    service: str
    name: str
    trace: str
    span: str
    parent: str


@dataclass
class Collector:
    """The received requests, and the address of the collector."""

    url: str = ""
    spans: list[Span] = field(default_factory=list[Span])
    authorizations: set[str | None] = field(default_factory=set[str | None])

    def names(self, trace: str) -> set[tuple[str, str]]:
        """Return service and name of the spans of a trace."""
        return {(span.service, span.name) for span in self.spans if span.trace == trace}

    def named(self, name: str) -> list[Span]:
        """Return the spans of this name."""
        return [span for span in self.spans if span.name == name]

    def add(self, body: bytes) -> None:
        """Keep the spans of a request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            given = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        given["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                    )
                    for span in scope.spans
                ]


@contextmanager
def collecting() -> Generator[Collector]:
    """Collect until the block ends."""
    collector = Collector()

    class Handler(SilentHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.authorizations.add(self.headers["authorization"])
            collector.add(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        yield collector
