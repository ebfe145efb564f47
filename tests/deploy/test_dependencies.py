"""The wheel's dependencies: a plain installation has all that the commands need, and each extra all of its own."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("shared", "workers", "query", "toolscale")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# The modules that only an extra needs; the others must do with the core.
MODULES_OF_EXTRAS = {
    "workers/sources/docker.py": "docker",
    "workers/sources/kubernetes.py": "kubernetes",
    "shared/service/tracing.py": "otel",
}


def distribution(requirement: str) -> str:
    """Return the normalized name of a requirement."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub("[-_.]+", "-", name).lower()


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of these requirements and of all that they need without extras."""
    found: set[str] = set()
    pending = [distribution(requirement) for requirement in requirements]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [distribution(needed) for needed in _needs(name) if "extra ==" not in needed]
    return found


def _needs(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []  # of another platform


def imported(path: Path) -> Iterator[str]:
    """Yield the top-level modules of others that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                found = [module]
            case _:
                found = []
        tops = {name.partition(".")[0] for name in found}
        yield from tops.difference(sys.stdlib_module_names, OURS)


@pytest.mark.parametrize("package", OURS)
def test_a_plain_installation_has_all_imported_packages(package: str) -> None:
    providers = {module: {distribution(name) for name in names} for module, names in packages_distributions().items()}
    core = closure(PROJECT["dependencies"])
    missing = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / package).rglob("*.py")
        for module in imported(path)
        if not providers[module] & (core | _of_extra(path))
    }

    assert missing == set()


def _of_extra(path: Path) -> set[str]:
    extra = MODULES_OF_EXTRAS.get(path.relative_to(ROOT).as_posix())
    return closure(EXTRAS[extra]) if extra else set()


def test_each_extra_is_needed_beyond_the_core() -> None:
    core = closure(PROJECT["dependencies"])

    assert {name for name, wanted in EXTRAS.items() if not closure(wanted) - core} == set()
