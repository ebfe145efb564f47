"""The tokens of a response's own text, which contains their number."""

from __future__ import annotations

from query.response.find_response import FindResponse
from shared.text.tokens import Counter, json_text


def counted(response: FindResponse, count: Counter) -> FindResponse:
    """Return the response with the tokens of its JSON text, the digits of this number and of the net included.

    The tokens of a number depend on its sign and on how many digits it has, so one count is mostly enough.
    If no number equals the tokens of the text that contains it, the response contains the larger of the two.
    """
    answer, metrics = response.as_object(), response.token_metrics

    def text(tokens: int) -> str:
        answer["token_metrics"] |= {"answer_tokens": tokens, "net_tokens_saved": metrics.net_of(tokens)}
        return json_text(answer)

    def shape(tokens: int) -> tuple[int, bool, int]:
        net = metrics.net_of(tokens)
        return len(str(tokens)), net < 0, len(str(net))

    tried = [metrics.returned_tokens]  # an answer has a few more
    while (tokens := count(text(tried[-1]))) not in tried and shape(tokens) != shape(tried[-1]):
        tried.append(tokens)
    tokens = tokens if tokens not in tried else max(tried[tried.index(tokens) :])
    return response.model_copy(update={"token_metrics": metrics.with_answer_tokens(tokens)})
