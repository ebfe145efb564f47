"""`make shape`: measure the code of each package, here and at an earlier commit, as a Markdown table.

`make shape BENCH_ARGS="--beside COMMIT"` shows each number before and after. `product` is the first four packages.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.harness import ROOT, table

PRODUCT = ("shared", "workers", "query", "toolscale")
OTHERS = ("tests", "benchmarks")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs")

Texts = Mapping[str, str]
"""The content of files by their paths."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def measures(sources: Sequence[str]) -> dict[str, str]:
    """Return the measures of these Python files by name."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    lines = sum(source.count("\n") for source in sources)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    functions = [node.name for node in nodes if isinstance(node, Function)]
    private = [name for name in functions if name.startswith("_") and not name.startswith("__")]
    uses = Counter(_name(node) for node in nodes)
    settings = [node for node in classes if node.name == "Settings"]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    tokens = (token for source in sources for token in tokenize.generate_tokens(io.StringIO(source).readline))
    return {
        "lines": f"{lines:,}",
        "statements": f"{sum(isinstance(node, ast.stmt) for node in nodes):,}",
        "files": f"{len(sources)}",
        "public classes": f"{sum(not node.name.startswith('_') for node in classes)}",
        "protocols": f"{sum(any(_name(base) == 'Protocol' for base in node.bases) for node in classes)}",
        "settings": f"{sum(isinstance(field, ast.AnnAssign) for node in settings for field in node.body)}",
        "private functions called once": _share(sum(uses[name] == 1 for name in private), len(functions)),
        "lines of imports": _share(sum((node.end_lineno or 0) - node.lineno + 1 for node in imports), lines),
        "lines with a comment": _share(sum(token.type == tokenize.COMMENT for token in tokens), lines),
    }


def _name(node: ast.AST) -> str:
    """Return the name or the attribute that this node reads; empty for other nodes."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "0"


def columns(files: Texts) -> dict[str, dict[str, str]]:
    """Return the measures of each package, of the product, and the words of the documents."""

    def sources(*packages: str) -> list[str]:
        return [text for path, text in files.items() if path.endswith(".py") and path.split("/")[0] in packages]

    by_package = {package: measures(sources(package)) for package in (*PRODUCT, *OTHERS)}
    found = {**by_package, "product": measures(sources(*PRODUCT))}
    words = sum(len(re.findall(r"\S+", text)) for path, text in files.items() if path.endswith(".md"))
    return {name: {**own, "words of docs": f"{words:,}" if name == "product" else ""} for name, own in found.items()}


def here() -> Texts:
    """Return the files of this checkout."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PRODUCT, *OTHERS, *DOCUMENTS]
    paths = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    # a file that was deleted is listed until that is committed
    existing = [path for path in paths if _is_read(path) and (ROOT / path).exists()]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in existing}


def at(commit: str) -> Texts:
    """Return the files of a commit."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        opened = {member.name: members.extractfile(member) for member in members if _is_read(member.name)}
        return {path: file.read().decode() for path, file in opened.items() if file}


def _is_read(path: str) -> bool:
    if path.endswith(".py"):
        return path.split("/")[0] in (*PRODUCT, *OTHERS)
    return path.endswith(".md") and path.split("/")[0] in DOCUMENTS


def report(now: Texts, before: Texts | None = None) -> str:
    """Return the table; with another state of the files, each cell has both where they differ."""
    packages, earlier = columns(now), columns(before) if before else columns(now)
    rows = [
        [name, *(_cell(earlier[package][name], own[name]) for package, own in packages.items())]
        for name in packages["product"]
    ]
    return table(("", *packages), rows)


def _cell(before: str, now: str) -> str:
    return now if before == now else f"{before} → {now}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shape", description=__doc__)
    parser.add_argument("--beside", metavar="COMMIT", help="show the numbers of this commit too")
    commit = parser.parse_args().beside
    print(report(here(), at(commit) if commit else None))


if __name__ == "__main__":
    main()
