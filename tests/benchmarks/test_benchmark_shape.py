"""The measures of the code, on source whose measures are known."""

from __future__ import annotations

from benchmarks.shape import columns, measures, report

SOURCE = '''"""A module."""

from typing import Protocol


class Settings:
    host: str = ""  # a comment
    port: int = 0

    def url(self) -> str:
        return _joined(self.host, self.port)


class Engine(Protocol):
    def run(self) -> None: ...


class _Private:
    pass


def _joined(*parts: object) -> str:
    return "".join(map(_text, parts)) + _text("")


def _text(part: object) -> str:
    return str(part)
'''


def test_each_measure_counts_what_its_name_says() -> None:
    found = measures([SOURCE])

    assert found["lines"] == str(SOURCE.count("\n"))
    assert (found["files"], found["public classes"], found["protocols"], found["settings"]) == ("1", "2", "1", "2")
    assert found["private functions called once"].startswith("1 ")  # _joined; _text has two uses
    assert found["lines of imports"].startswith("1 ")
    assert found["lines with a comment"].startswith("1 ")


def test_the_product_is_the_sum_of_its_packages_and_has_the_words_of_the_documents() -> None:
    files = {"shared/a.py": SOURCE, "query/b.py": SOURCE, "tests/c.py": SOURCE, "docs/d.md": "Two words."}

    found = columns(files)

    assert (found["shared"]["files"], found["product"]["files"], found["tests"]["files"]) == ("1", "2", "1")
    assert found["product"]["words of docs"] == "2"


def test_both_numbers_are_shown_where_a_commit_differs() -> None:
    before, now = {"shared/a.py": SOURCE}, {"shared/a.py": SOURCE, "workers/b.py": SOURCE}

    assert "| files | 1 | 0 → 1 | 0 | 0 | 0 | 0 | 1 → 2 |" in report(now, before).splitlines()
