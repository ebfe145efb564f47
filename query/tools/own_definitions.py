"""What our own tools cost whoever lists them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from query.bounded.budget import counting
from query.tools.offer import listed

if TYPE_CHECKING:
    from query.caller import Permission
    from query.tools.offer import Offer
    from shared.catalog import Encoding


class OwnDefinitions:
    """The tokens of our definitions as `tools/list` sends them, counted once for each set of permissions."""

    def __init__(self, offers: Sequence[Offer], encoding: Encoding) -> None:
        """Take the offers as they are when they are first counted."""
        self._offers = offers
        self._encoding = encoding
        self.tokens = functools.lru_cache(self._tokens)

    def _tokens(self, permissions: frozenset[Permission]) -> int:
        count = counting(self._encoding)
        ours = (listed(each) for each in self._offers if each.permission in permissions and each.pages != "foreign")
        return sum(count(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in ours)
