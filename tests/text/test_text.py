from __future__ import annotations

import pytest

from shared.text.bm25 import name_terms, prose_terms, words


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        ("read_file", "read file"),
        ("getHTTPStatus_code", "get HTTP Status code"),
        ("list-pull-requests", "list pull requests"),
        ("already words", "already words"),
        ("", ""),
    ],
)
def test_an_identifier_is_split_into_its_words(identifier: str, expected: str) -> None:
    assert words(identifier) == expected


def test_a_name_has_the_terms_of_its_whole_and_of_its_parts() -> None:
    assert name_terms("listBranches") == ["listbranch", "list", "branch"]
    assert name_terms("list_pull_requests") == ["list", "pull", "request"]
    assert name_terms("sha256") == ["sha256", "sha", "256"]


def test_a_proper_name_in_prose_stays_whole_and_an_identifier_does_not() -> None:
    assert prose_terms("on GitHub") == ["github"]
    assert prose_terms("call listBranches") == ["call", "listbranch", "list", "branch"]


def test_forms_of_a_word_share_a_term_and_stop_words_have_none() -> None:
    assert prose_terms("Please help me, I need to list the running tasks") == prose_terms("list running task")
    assert prose_terms("it is what it is") == []


def test_russian_words_share_a_term_over_their_cases() -> None:
    assert prose_terms("Прочитать файлы") == prose_terms("прочитать файл")


def test_a_chinese_query_shares_terms_with_a_description_that_holds_its_words() -> None:
    described = set(prose_terms("查询城市未来七天的天气预报"))

    assert set(prose_terms("天气预报查询")) & described == {"天气", "气预", "预报", "查询"}
    assert prose_terms("图") == ["图"]


def test_scripts_within_one_text_are_told_apart() -> None:
    assert prose_terms("生成PDF报告") == ["生成", "pdf", "报告"]


def test_width_and_case_make_no_difference() -> None:
    assert prose_terms("ＰＤＦ Report") == prose_terms("pdf report")  # noqa: RUF001  # full-width letters are the case
