"""The tokens of an answer's parts add up to those of its text, also where parts are remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.answers.budget import counting, parts
from shared.catalog import Encoding
from shared.text.tokens import counter

SEPARATORS = (',{"name":"', ',{"', '}],"', '":"', "'s", "\n", " ", "}", '"')
texts = st.lists(st.one_of(st.sampled_from(SEPARATORS), st.text(max_size=12)), max_size=20).map("".join)


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
@given(text=texts)
def test_the_tokens_of_the_parts_add_up(encoding: Encoding, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    whole = counter(encoding)(text)

    assert [counting(encoding)(text), counting(encoding)(text)] == [whole, whole]


def test_an_answer_is_divided_into_its_tools() -> None:
    answer = '{"tools":[{"name":"a:b","summary":"c"},{"serverName":"d","name":"e"}],"token_metrics":{"tokens":9}}'

    divided = parts(answer)

    assert "".join(divided) == answer
    assert divided[1:] == ['serverName":"d","name":"e"}],"', 'token_metrics":{"tokens":9}}']
