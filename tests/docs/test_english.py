"""Comments, docstrings, messages and documents are in plain English: few words of a dialect."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.prose import ROOT, Mark, Text, marks, per_thousand, texts

MOST_PER_THOUSAND = 3.0
WORST_FILES = 10

PROSE = {
    **{package: [ROOT / package] for package in ("workers", "query", "shared", "toolscale")},
    "docs": sorted((ROOT / "docs").glob("*.md")),
    "README": [ROOT / "README.md"],
    "CHANGELOG": [ROOT / "CHANGELOG.md"],
}


@pytest.mark.parametrize("place", PROSE)
def test_few_words_are_marked(place: str) -> None:
    prose = texts(PROSE[place])

    rate = per_thousand(prose)

    assert rate <= MOST_PER_THOUSAND, f"{place}: {rate:.1f} marked words per 1,000\n{report(prose)}"


def test_a_marked_word_is_found_in_a_docstring_a_comment_and_a_message(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Whoever\nit told."""\n\nx = "told"  # meanwhile\nraise ValueError(f"{x} was told")\n')

    found = [(mark.line, mark.text) for mark in marks(texts([module]))]

    assert sorted(found) == [(1, "Whoever"), (2, "told"), (4, "meanwhile"), (5, "told")]


def test_code_in_a_document_is_not_marked(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text("`told` [a link](told.md)\n\n```sh\ntold\n```\n\nWe know\nwhat it does. What is told?\n")

    found = [(mark.line, mark.text) for mark in marks(texts([document]))]

    assert found == [(8, "What"), (8, "told")]


def report(prose: Sequence[Text]) -> str:
    """Return the files with the most marked words, the lines where they are, and the command that shows the rest."""
    by_file: defaultdict[Path, list[Mark]] = defaultdict(list)
    for mark in marks(prose):
        by_file[mark.path].append(mark)
    worst = sorted(by_file.items(), key=lambda item: -len(item[1]))[:WORST_FILES]
    lines = [f"  {path.relative_to(ROOT)}: {_listed(found)}" for path, found in worst]
    return "\n".join([*lines, f"{_most_frequent(prose)}\nAll of them: python -m tests.support.prose PATH..."])


def _listed(found: Sequence[Mark]) -> str:
    return ", ".join(f"{mark.text} ({mark.line})" for mark in sorted(found, key=lambda mark: mark.line))


def _most_frequent(prose: Sequence[Text]) -> str:
    counts = Counter(mark.text.lower() for mark in marks(prose))
    return "Most frequent: " + ", ".join(f"{word} {count}" for word, count in counts.most_common(12))
