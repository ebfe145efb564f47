"""The longest prefix of a list or of a text that fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from query.paging.budget import EXACT_CHARACTERS, PIECE_CHARACTERS, Budget

_STEP_CHARACTERS = 16

# As long as a common cursor, in characters and tokens: stands in for it while a response is measured.
LIKE_A_CURSOR = "q7Zk0XvB3nTfYw9LrD5sHcJ2mPgA8eUo4iKxVb1NtQyRz6WlSdFhGjMpCaEuOvIkB0nXw5T3YZ"


def most_that_fit(items: int, fits: Callable[[int], bool]) -> int:
    """Return how many of the first items fit, 0 to `items`, by a binary search over `fits(n)`."""
    if items and fits(items):
        return items
    enough, too_many = 0, items
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        enough, too_many = (middle, too_many) if fits(middle) else (enough, middle)
    return enough


def items_that_fit(texts: Sequence[str], budget: Budget) -> int:
    """Return how many of the first texts the budget admits together: for a page of a listing."""
    left = budget
    for number, text in enumerate(texts):
        if not left.may_admit(text) or (tokens := left.count(text)) > left.max_tokens:
            return number
        left = left.minus(tokens)
    return len(texts)


def fitting_prefix(text: str, budget: Budget) -> int:
    """Return how many characters of a text the budget admits: as many as it can hold, give or take a token.

    The text ends there at a token boundary, since a character more would be one token more.
    """
    likely = _likely_prefix(text, budget)
    # a longer text is counted in the same pieces
    return likely if likely > EXACT_CHARACTERS else _exact_prefix(text, likely, budget)


def _likely_prefix(text: str, budget: Budget) -> int:
    """Return the prefix whose pieces the budget admits together; each piece is counted once, but for the last."""
    start, left = 0, budget
    while start < len(text):
        piece = text[start : start + PIECE_CHARACTERS]
        tokens = left.count(piece)
        if tokens > left.max_tokens:
            return start + _in_piece(piece, left)
        start, left = start + len(piece), left.minus(tokens)
    return start


def _in_piece(piece: str, budget: Budget) -> int:
    return most_that_fit(len(piece), lambda characters: budget.admits(piece[:characters]))


def _exact_prefix(text: str, likely: int, budget: Budget) -> int:
    """Return the exact prefix, a few characters from the likely one."""

    def fits(characters: int) -> bool:
        return budget.admits(text[:characters])

    enough, too_many, step = likely, likely, _STEP_CHARACTERS
    while not fits(enough):
        enough, too_many, step = max(0, enough - step), enough, 2 * step
    while enough == too_many or (too_many <= len(text) and fits(too_many)):
        enough, too_many, step = too_many, too_many + step, 2 * step
    return enough + most_that_fit(min(too_many - 1, len(text)) - enough, lambda characters: fits(enough + characters))
