"""Cursors with their keys and their store, as the tools of the query service return and accept them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from query.cursors.keys import cursor_keys
from query.cursors.sealing import KEY_BYTES, NOT_OURS, Sealer
from query.cursors.store import CursorStore, MemoryStore
from shared.errors import CursorInvalid

if TYPE_CHECKING:
    from shared.settings import Settings

TTL_S = 900.0
# Redis evicts nothing here and also stores the intents; a rest has about 100 KiB, so some hundred fit.
KEPT_BYTES = 64 << 20
# A longer state goes to the store: each byte of a cursor costs a client about one token.
INLINE_BYTES = 36

_INLINE, _STORED = b"\x00", b"\x01"


@dataclass(frozen=True, slots=True)
class Cursors:
    """Turns the state of an answer into a cursor of at most 77 characters, and back."""

    sealer: Sealer
    store: CursorStore

    def seal(self, state: bytes, *bound_to: str) -> str:
        """Return a cursor for this state; unsealing requires the same `bound_to`: caller, tool, question.

        Raises:
            CursorsUnavailable: the state is too long for a cursor, and the store failed.
        """
        marked = _INLINE + state if len(state) <= INLINE_BYTES else _STORED + self.store.put(state)
        return self.sealer.seal(marked, *bound_to)

    def unseal(self, cursor: str, *bound_to: str) -> bytes:
        """Return the state of a cursor.

        Raises:
            CursorInvalid: the cursor was changed, is bound to something else, or has expired.
            CursorsUnavailable: the store of its state does not answer.
        """
        marked = self.sealer.unseal(cursor, *bound_to)
        match marked[:1]:
            case b"\x00":
                return marked[1:]
            case b"\x01":
                return self.store.get(marked[1:])
            case _:
                raise CursorInvalid(NOT_OURS)


def open_cursors(settings: Settings) -> Cursors:
    """Return cursors with a store in Redis if REDIS_URL is set, else in this process.

    Raises:
        ConfigInvalid: the key file cannot be read or written.
    """
    return Cursors(Sealer(cursor_keys(settings), settings.cursor_ttl_s), _store(settings))


def own_cursors() -> Cursors:
    """Return cursors that only this process can open."""
    return Cursors(Sealer([secrets.token_bytes(KEY_BYTES)], TTL_S), MemoryStore(TTL_S, KEPT_BYTES))


def _store(settings: Settings) -> CursorStore:
    if settings.redis_url is None:
        return MemoryStore(settings.cursor_ttl_s, KEPT_BYTES)
    from query.cursors.redis_store import RedisStore  # noqa: PLC0415  # only if Redis is used
    from shared.service.redis import connect  # noqa: PLC0415

    return RedisStore(connect(settings.redis_url, decode=False), settings.cursor_ttl_s, KEPT_BYTES)
