"""A check of a Qdrant server without its client, which takes seconds to import."""

from __future__ import annotations

import httpx2

TIMEOUT_S = 5.0


def unreachable_reason(url: str) -> str | None:
    """Return the reason why the server at `url` does not answer, None if it does."""
    try:
        response = httpx2.get(f"{url.rstrip('/')}/readyz", timeout=TIMEOUT_S, trust_env=False)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"
    return f"HTTP {response.status_code}" if response.is_server_error else None
