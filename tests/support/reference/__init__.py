"""The references that the code writes: `make docs` renders them, a test in `tests/docs` compares them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.reference import redis_bounds, settings

ROOT = Path(__file__).parents[3]

# Each function takes the document as it stands, keeps the parts that people write, and returns the new document.
REFERENCES: dict[str, Callable[[str], str]] = {
    "docs/scaling.md": redis_bounds.render,
    ".env.example": settings.render,
}


def rendered(name: str) -> str:
    """Return a reference as the code has it now."""
    path = ROOT / name
    return REFERENCES[name](path.read_text(encoding="utf-8") if path.exists() else "")
