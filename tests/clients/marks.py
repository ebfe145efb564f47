"""The marks of the suite's tests."""

from __future__ import annotations

import shutil

import pytest


def of_slow_module() -> list[pytest.MarkDecorator]:
    """Return the marks of a module that installs packages from an index."""
    return [pytest.mark.slow, pytest.mark.index]


def with_node(needs_node: bool) -> list[pytest.MarkDecorator]:
    """Return the marks of a case that may need Node.js."""
    if not needs_node:
        return []
    without_npm = pytest.mark.skipif(not shutil.which("npm"), reason="Node.js and npm are not installed")
    return [pytest.mark.node, without_npm]
