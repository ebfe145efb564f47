from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock
from weakref import ref

import pytest
import tiktoken
import tiktoken.registry
from structlog.testing import capture_logs

from shared.errors import AssetInvalid, CountFailed
from shared.text.tokens import (
    VOCABULARIES,
    bundled_vocabularies,
    count_all,
    count_parts,
    counter,
    counters,
    estimate,
)
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abc", 1),
        ("abcd", 1),
        ("abcde", 1),
        ("abcdef", 2),
        ("abcdefg", 2),
        ("abcdefgh", 2),
        ("abcdefghi", 3),
        ("a bc  def\nabcd", 4),
        ("\u4f60\u597d\u4e16\u754c", 1),
    ],
)
def test_the_heuristic_counts_by_the_length_of_words(text: str, tokens: int) -> None:
    assert estimate(text) == tokens


@pytest.mark.parametrize(("encoding", "tokens"), [("cl100k_base", 2), ("o200k_base", 2)])
def test_text_is_counted_as_tiktoken_counts_it(encoding: str, tokens: int) -> None:
    assert counter(encoding)("hello world") == tokens  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["<|endoftext|>", "a \ud800 lone surrogate", "\x00", "a" * 1_000_000, "word " * 200_000, "\U0001f600" * 1000],
)
def test_hostile_text_is_counted_not_raised(text: str) -> None:
    counts = count_all([text], counters())[0]

    assert set(counts) == {"cl100k_base", "o200k_base"}
    assert all(count > 0 for count in counts.values())


def test_a_special_token_in_a_description_counts_as_the_plain_text_it_is() -> None:
    assert counter("cl100k_base")("<|endoftext|>") == 7


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        (["Hello", " world"], [1, 1]),
        (["Hel", "lo", " world"], [1, 0, 1]),  # the first token ends in the second part
        (["", "Hello", ""], [0, 1, 0]),
        (["\u00e9", "\ud800", " a"], [1, 1, 1]),  # tiktoken counts a lone surrogate as U+FFFD
        ([], []),
    ],
)
def test_a_token_counts_for_the_part_in_which_it_begins(parts: list[str], counts: list[int]) -> None:
    assert count_parts(parts, "cl100k_base") == counts


def test_a_count_that_fails_is_absent_and_never_zero() -> None:
    def fails(text: str) -> int:
        raise CountFailed(f"no count for {len(text)} characters")

    assert count_all(["abc"], {"cl100k_base": fails, "heuristic": estimate}) == [{"heuristic": 1}]


def test_a_panic_of_tiktoken_is_a_failed_count() -> None:
    with pytest.raises(CountFailed, match="cl100k_base"):
        counter("cl100k_base")(" " * 1_200_000 + "x")


def test_a_vocabulary_that_was_tampered_with_is_refused_and_left_alone(tmp_path: Path) -> None:
    file_name, _ = VOCABULARIES["cl100k_base"]
    tampered = tmp_path / file_name
    shutil.copy(bundled_vocabularies() / file_name, tampered)
    with tampered.open("ab") as file:
        file.write(b"x")

    with pytest.raises(AssetInvalid, match="expected SHA-256 223921b7"):
        counter("cl100k_base", tmp_path)

    assert tampered.stat().st_size > 1_000_000


def test_a_vocabulary_is_loaded_when_the_first_text_is_counted(tmp_path: Path) -> None:
    late = counters(tmp_path)
    for file_name, _ in VOCABULARIES.values():
        shutil.copy(bundled_vocabularies() / file_name, tmp_path)

    assert count_all(["hello world"], late) == [{"cl100k_base": 2, "o200k_base": 2}]


def test_an_idle_counter_frees_its_vocabulary_and_reads_it_for_the_next_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file_name, _ in VOCABULARIES.values():
        shutil.copy(bundled_vocabularies() / file_name, tmp_path)
    monkeypatch.setattr("shared.text.tokens.IDLE_S", 0.2)
    # another test's encoding, which that test's code holds
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "o200k_base", raising=False)
    loads, encodings = Mock(side_effect=tiktoken.get_encoding), list[ref[tiktoken.Encoding]]()

    def get_encoding(name: str) -> tiktoken.Encoding:
        encoding: tiktoken.Encoding = loads(name)
        encodings.append(ref(encoding))
        return encoding

    monkeypatch.setattr("tiktoken.get_encoding", get_encoding)
    late = counters(tmp_path)["o200k_base"]

    assert late("hello world") == 2
    eventually(lambda: encodings[0]() is None)
    assert (late("hello world"), loads.call_count) == (2, 2)


def test_without_vocabularies_nothing_is_fetched_and_the_estimate_remains(tmp_path: Path) -> None:
    with pytest.raises(AssetInvalid, match="found none"):
        counter("o200k_base", tmp_path)

    with capture_logs() as logs:
        assert count_all(["abc", "def"], counters(tmp_path)) == [{}, {}]
    assert estimate("abc") == 1
    unusable = [log["encoding"] for log in logs if log["event"] == "vocabulary_unusable"]
    assert sorted(unusable) == ["cl100k_base", "o200k_base"]  # once each
