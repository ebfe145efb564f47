"""The addresses of QDRANT_URL: one server, or several nodes of one cluster."""

from __future__ import annotations

from urllib.parse import urlsplit

DEFAULT_PORT = 6333


def addresses(url: str) -> tuple[str, ...]:
    """Return the addresses in `url`, which commas separate, each with its port and without a final slash."""
    return tuple(_with_port(address.strip()) for address in url.split(",") if address.strip())


def _with_port(address: str) -> str:
    parts = urlsplit(address.rstrip("/"))
    return address.rstrip("/") if parts.port else parts._replace(netloc=f"{parts.netloc}:{DEFAULT_PORT}").geturl()
