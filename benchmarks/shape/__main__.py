"""`python -m benchmarks.shape`: measure the shape of the code and print it as a Markdown table.

`--quick` leaves out the two main paths, which load the model and take some seconds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.prose import per_thousand, texts
from benchmarks.shape import sizes
from benchmarks.shape.imports import circles, import_graph, upwards
from benchmarks.shape.tree import PACKAGES, ROOT, Module, modules

Row = tuple[str, str]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shape", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the two main paths")
    product = modules()
    is_quick = parser.parse_args().quick
    rows = [*_structure(product), *_sizes(product), *_english()]
    print(table(rows if is_quick else [*rows, *_main_paths()]))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    return "\n".join(["| measure | value |", "|---|--:|", *(f"| {name} | {value} |" for name, value in rows)])


def _structure(product: Sequence[Module]) -> Iterator[Row]:
    yield "loose modules in the four package roots", f"{sum(module.is_loose for module in product)}"
    yield "import circles", f"{len(circles(import_graph(product)))}"
    for package in ("query", "workers"):
        yield f"imports upwards inside `{package}/`", f"{len(upwards(product, package))}"


def _main_paths() -> Iterator[Row]:
    from benchmarks.shape.paths import main_paths  # noqa: PLC0415  # loads the whole product

    reconciliation, call = main_paths()
    for name, passed in (("one `find_tool` call", call), ("the first reconciliation", reconciliation)):
        yield f"functions, files and places of {name}", f"{passed.functions}, {passed.files}, {passed.places}"


def _sizes(product: Sequence[Module]) -> Iterator[Row]:
    lengths = sizes.function_lengths(product)
    p90 = statistics.quantiles(lengths, n=10)[-1]
    yield "lines of the product", f"{sizes.lines(product):,}"
    yield "lines of a function: median, p90, longest", f"{statistics.median(lengths):g}, {p90:g}, {lengths[-1]}"
    yield "settings", f"{sizes.settings(product)}"
    yield "public classes", f"{sizes.public_classes(product)}"
    yield "glossary rows", f"{sizes.glossary_rows(ROOT / 'docs' / 'glossary.md')}"
    for name, paths in _documents().items():
        yield f"words of {name}", f"{sizes.document_words(paths):,}"


def _english() -> Iterator[Row]:
    packages = {f"`{package}/`": [ROOT / package] for package in PACKAGES}
    product = {"the product": [ROOT / package for package in PACKAGES]}
    for name, paths in {**product, **packages, **_documents()}.items():
        yield f"marked words per 1,000 in {name}", f"{per_thousand(texts(paths)):.1f}"


def _documents() -> dict[str, list[Path]]:
    documents = {"`docs/*.md`": sorted((ROOT / "docs").glob("*.md"))}
    return documents | {name: [ROOT / name] for name in ("README.md", "CHANGELOG.md")}


if __name__ == "__main__":
    main()
