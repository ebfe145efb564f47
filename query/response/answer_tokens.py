"""The tokens of a response's own text, which contains their number."""

from __future__ import annotations

from query.response.find_response import FindResponse
from shared.text.forms import json_text
from shared.text.tokens import Counter

# The JSON of tools has about so many characters per token.
_LIKELY_CHARACTERS = 4


def counted(response: FindResponse, count: Counter) -> FindResponse:
    """Return the response with the tokens of its JSON text, the digits of this number and of the net included.

    The tokens of a number depend on its sign and on how many digits it has, so one count is mostly enough.
    If no number equals the tokens of the text that contains it, the response contains the larger of the two.
    """
    answer = response.as_object()

    def text(tokens: int) -> str:
        metrics = response.token_metrics.with_answer_tokens(tokens)
        answer["token_metrics"] |= {"answer_tokens": tokens, "net_tokens_saved": metrics.net_tokens_saved}
        return json_text(answer)

    def shape(tokens: int) -> tuple[int, bool, int]:
        net = response.token_metrics.with_answer_tokens(tokens).net_tokens_saved
        return len(str(tokens)), net < 0, len(str(net))

    tried = [len(text(0)) // _LIKELY_CHARACTERS]
    while (tokens := count(text(tried[-1]))) not in tried and shape(tokens) != shape(tried[-1]):
        tried.append(tokens)
    tokens = tokens if tokens not in tried else max(tried[tried.index(tokens) :])
    return response.model_copy(update={"token_metrics": response.token_metrics.with_answer_tokens(tokens)})
