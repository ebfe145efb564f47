"""The longest prefix of a list or of a text that fits a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from query.paging.budget import Budget

# The first guess of a prefix; English has about four characters per token.
_LIKELY_CHARACTERS = 4

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
        if not left.admits(text):
            return number
        left = left.minus(left.count(text))
    return len(texts)


def fitting_prefix(text: str, budget: Budget) -> int:
    """Return how many characters of a text the budget admits: as many as it can hold, give or take a token.

    The text ends there at a token boundary, since a character more would be one token more.
    """
    reach = min(len(text), 1 + budget.max_tokens * _LIKELY_CHARACTERS)
    while reach < len(text) and budget.admits(text[:reach]):
        reach = min(len(text), reach * 2)
    return most_that_fit(reach, lambda characters: budget.admits(text[:characters]))
