"""The addresses of QDRANT_URL: one server, or several nodes of one cluster; and whether one answers."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx2

DEFAULT_PORT = 6333
TIMEOUT_S = 5.0


def addresses(url: str) -> tuple[str, ...]:
    """Return the addresses in `url`, which commas separate, each with its port and without a final slash."""
    return tuple(_with_port(address.strip()) for address in url.split(",") if address.strip())


def _with_port(address: str) -> str:
    parts = urlsplit(address.rstrip("/"))
    return address.rstrip("/") if parts.port else parts._replace(netloc=f"{parts.netloc}:{DEFAULT_PORT}").geturl()


def unreachable_reason(url: str) -> str | None:
    """Return the reason why no server at the addresses in `url` answers, None if one does."""
    # without Qdrant's client, which takes seconds to import
    reasons = [_unreachable_reason(address) for address in addresses(url)]
    return reasons[0] if all(reasons) else None


def _unreachable_reason(address: str) -> str | None:
    try:
        response = httpx2.get(f"{address}/readyz", timeout=TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"
    return f"HTTP {response.status_code}" if response.is_server_error else None
