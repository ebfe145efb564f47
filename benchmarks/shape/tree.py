"""The modules of the product, and the place of each: its folder, or the file itself in a package's root."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("workers", "query", "shared", "toolscale")


@dataclass(frozen=True)
class Module:
    """A Python file of the product and its parsed source."""

    path: Path
    source: str
    syntax: ast.Module

    @property
    def name(self) -> str:
        """Return the dotted name; that of a package is its folder's."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_loose(self) -> bool:
        """Return whether the file is directly in one of the four packages, its `__init__` and `__main__` included."""
        return self.path.parent.parent == ROOT

    @property
    def place(self) -> Path:
        """Return the folder, or the file itself where it is loose."""
        return place(self.path)


def modules() -> list[Module]:
    """Return all modules of the product, ordered by path."""
    return list(_modules())


def place(path: Path) -> Path:
    """Return the folder of a file of the product, or the file itself where it is directly in a package."""
    return path if path.parent.parent == ROOT else path.parent


def _modules() -> Iterator[Module]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            yield Module(path, source, ast.parse(source))
