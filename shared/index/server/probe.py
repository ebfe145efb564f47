"""A check of a Qdrant server without its client, which takes seconds to import."""

from __future__ import annotations

import httpx2

from shared.service.qdrant_addresses import addresses

TIMEOUT_S = 5.0


def unreachable_reason(url: str) -> str | None:
    """Return the reason why no server at the addresses in `url` answers, None if one does."""
    reasons = [_unreachable_reason(address) for address in addresses(url)]
    return reasons[0] if all(reasons) else None


def _unreachable_reason(address: str) -> str | None:
    try:
        response = httpx2.get(f"{address}/readyz", timeout=TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"
    return f"HTTP {response.status_code}" if response.is_server_error else None
