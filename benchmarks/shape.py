"""`make shape`: measure the code of the product, of this checkout and of an earlier commit, as a Markdown table.

`make shape BENCH_ARGS="--beside COMMIT"` adds a column for that commit. Names of measures are those of the table.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("shared", "workers", "query", "toolscale")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class File:
    """A Python file and its parsed source."""

    source: str
    syntax: ast.Module

    @staticmethod
    def of(source: str) -> File:
        """Return the parsed file."""
        return File(source, ast.parse(source))

    @property
    def nodes(self) -> Iterator[ast.AST]:
        """Return all nodes of the syntax tree."""
        return ast.walk(self.syntax)

    @property
    def comments(self) -> int:
        """Return the lines with a comment."""
        tokens = tokenize.generate_tokens(io.StringIO(self.source).readline)
        return sum(token.type == tokenize.COMMENT for token in tokens)


def measures(files: Sequence[File]) -> dict[str, str]:
    """Return the measures of a package by name."""
    lines = sum(file.source.count("\n") for file in files)
    classes = [node for file in files for node in file.nodes if isinstance(node, ast.ClassDef)]
    functions = [node for file in files for node in file.nodes if isinstance(node, Function)]
    private = [function.name for function in functions if _is_private(function.name)]
    uses = Counter(name for file in files for name in _names(file))
    once = sum(uses[name] == 1 for name in private)
    imports = sum(
        _lines(node) for file in files for node in file.nodes if isinstance(node, ast.Import | ast.ImportFrom)
    )
    lengths = [_lines(function) for function in functions] or [0, 0]
    p90 = statistics.quantiles(lengths, n=10)[-1]
    return {
        "lines": f"{lines:,}",
        "statements": f"{sum(isinstance(node, ast.stmt) for file in files for node in file.nodes):,}",
        "files": f"{len(files)}",
        "public classes": f"{sum(not node.name.startswith('_') for node in classes)}",
        "protocols": f"{sum(any(_name(base) == 'Protocol' for base in node.bases) for node in classes)}",
        "settings": f"{sum(map(_fields, (node for node in classes if node.name == 'Settings')))}",
        "private functions used once": _share(once, len(functions)),
        "lines of imports": _share(imports, lines),
        "lines with a comment": _share(sum(file.comments for file in files), lines),
        "lines of a function: median, p90": f"{statistics.median(lengths):g}, {p90:g}",
    }


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return the columns of measures as a Markdown table."""
    rows = [f"| measure | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    names = next(iter(columns.values()))
    rows += [f"| {name} | {' | '.join(column[name] for column in columns.values())} |" for name in names]
    return "\n".join(rows)


def here(packages: Sequence[str]) -> list[File]:
    """Return the files of these packages in this checkout."""
    paths = (path for package in packages for path in sorted((ROOT / package).rglob("*.py")))
    return [File.of(path.read_text(encoding="utf-8")) for path in paths]


def at(commit: str, packages: Sequence[str]) -> list[File]:
    """Return the files of these packages in a commit."""
    command = ["git", "archive", commit, *packages]
    archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        python = [member for member in members if member.isfile() and member.name.endswith(".py")]
        opened = (members.extractfile(member) for member in python)
        return [File.of(file.read().decode()) for file in opened if file]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shape", description=__doc__)
    parser.add_argument("--beside", metavar="COMMIT", help="add columns for this commit")
    commit = parser.parse_args().beside
    columns = dict[str, Mapping[str, str]]()
    for name, packages in {"shared + workers": ("shared", "workers"), "product": PACKAGES}.items():
        if commit:
            columns[f"{name}, {commit}"] = measures(at(commit, packages))
        columns[name] = measures(here(packages))
    print(table(columns))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _names(file: File) -> Iterator[str]:
    """Yield each name and attribute that the file reads."""
    for node in file.nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            yield _name(node)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _fields(settings: ast.ClassDef) -> int:
    return sum(isinstance(statement, ast.AnnAssign) for statement in settings.body)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "0"


if __name__ == "__main__":
    main()
