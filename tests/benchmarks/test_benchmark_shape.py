"""The measures of the code, on source whose measures are known."""

from __future__ import annotations

from benchmarks.shape import File, at, here, measures, table

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
    found = measures([File.of(SOURCE)])

    assert found["lines"] == str(SOURCE.count("\n"))
    assert (found["files"], found["public classes"], found["protocols"], found["settings"]) == ("1", "2", "1", "2")
    assert found["private functions used once"].startswith("1 ")  # _joined; _text has two uses
    assert found["lines of imports"].startswith("1 ")
    assert found["lines with a comment"].startswith("1 ")


def test_a_commit_and_the_checkout_have_the_same_measures() -> None:
    before, now = measures(at("HEAD", ["shared"])), measures(here(["shared"]))

    assert before.keys() == now.keys()
    assert table({"before": before, "now": now}).count("\n") == len(now) + 1
