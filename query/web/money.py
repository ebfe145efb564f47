"""The price of tokens that a person sets on the page, kept by the browser alone."""

from __future__ import annotations

from collections.abc import Mapping

COOKIE = "toolscale-price"
HIGHEST = 100_000.0
_KEPT_S = 366 * 86_400


def price_of(query: Mapping[str, str], cookies: Mapping[str, str]) -> float | None:
    """Return the price of a million tokens in the query, else that of the browser; None if neither is a price."""
    return _price(query["price"] if "price" in query else cookies.get(COOKIE, ""))


def kept_price(text: str) -> dict[str, str]:
    """Return the header by which the browser keeps this price, or forgets one."""
    price = _price(text)
    life_s = 0 if price is None else _KEPT_S
    value = "" if price is None else f"{price:g}"
    return {"Set-Cookie": f"{COOKIE}={value}; Path=/; Max-Age={life_s}; HttpOnly; SameSite=Strict"}


def _price(text: str) -> float | None:
    try:
        price = float(text.replace(",", "."))
    except ValueError:
        return None
    return price if 0 < price <= HIGHEST else None
