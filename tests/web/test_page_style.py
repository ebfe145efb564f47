"""The page's colours can be read: every pair of them that meets has the contrast that WCAG 2.2 asks for."""

from __future__ import annotations

import re

import pytest

from query.web.routes import STATIC

CSS = (STATIC / "page.css").read_text(encoding="utf-8")
TEXT, GRAPHIC = 4.5, 3.0
PAIRS = [
    *((ink, paper, TEXT) for ink in ("ink", "quiet", "accent", "bad") for paper in ("paper", "raised")),
    ("on-accent", "accent", TEXT),
    ("warn", "paper", GRAPHIC),
]


def colours(scheme: str) -> dict[str, str]:
    """Return the custom properties of a colour scheme."""
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[0 if scheme == "light" else 1]))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.2, 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("ink", "paper", "least"), PAIRS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_that_meet_can_be_told_apart(scheme: str, ink: str, paper: str, least: float) -> None:
    of = colours(scheme)

    assert contrast(of[ink], of[paper]) >= least


def test_the_dark_scheme_has_a_colour_for_each_of_the_light_one() -> None:
    assert colours("dark").keys() == colours("light").keys()
