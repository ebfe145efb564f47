"""Import all that Toolscale imports, in its functions too, and fail if something is missing.

    docker run --rm -i IMAGE timeout 300 python - ABSENT ... < tests/support/imports.py

ABSENT are packages that the image leaves out on purpose. Below `timeout` the interpreter is not process 1, which would
fork when it imports `workers.app`, and so lose threads of other packages.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

PACKAGES = ("shared", "workers", "query", "toolscale")


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the modules that this code imports when it runs, each with the name that it takes from it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "__name__") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imported(node)


def main(absent: list[str]) -> int:
    """Print the imports that fail, and return 1 if there are any."""
    paths = [path for package in PACKAGES for path in Path(str(files(package))).rglob("*.py")]
    wanted = sorted({name for path in paths for name in imported(ast.parse(path.read_bytes()))})
    failed: list[str] = []
    for module, name in wanted:
        if module.partition(".")[0] in absent:
            continue
        try:
            if not hasattr(importlib.import_module(module), name):
                importlib.import_module(f"{module}.{name}")
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in absent:
                failed.append(f"{module} {name}: {error}")
    sys.stdout.write("".join(f"{line}\n" for line in [*failed, f"{len(wanted)} imports, {len(failed)} failed"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
