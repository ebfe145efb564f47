"""Seal a few bytes for a client to hand back: encrypted, authenticated, bound to a purpose, with an expiry.

AES-SIV (RFC 5297): it needs no nonce, so a cursor is twelve bytes shorter than with AES-GCM, which a model pays for
in tokens, and no number of replicas can repeat one. The same state sealed in the same second is the same cursor.
"""

from __future__ import annotations

import base64
import binascii
import struct
import time
from collections.abc import Callable, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from shared.errors import CursorInvalid

KEY_BYTES = 64
_EXPIRY = struct.Struct(">I")

NOT_OURS = "cursor: expected the nextCursor of an answer to the same question by the same caller, unchanged"
EXPIRED = "cursor: expired; ask again without it"


class Sealer:
    """Seals with the first of its keys and opens with any, so that keys can be exchanged while cursors are out."""

    def __init__(self, keys: Sequence[bytes], ttl_s: float, clock_s: Callable[[], float] = time.time) -> None:
        """Take keys of KEY_BYTES each; what is sealed can be opened for `ttl_s` seconds."""
        self._ciphers = [AESSIV(key) for key in keys]
        self._ttl_s = ttl_s
        self._clock_s = clock_s

    def seal(self, state: bytes, *bound_to: str) -> str:
        """Return a cursor of letters, digits, `-` and `_`, that opens only where `bound_to` is the same."""
        expiry = _EXPIRY.pack(int(self._clock_s() + self._ttl_s))
        return _text(self._ciphers[0].encrypt(expiry + state, _encoded(bound_to)))

    def unseal(self, cursor: str, *bound_to: str) -> bytes:
        """Return the state of a cursor.

        Raises:
            CursorInvalid: it was changed, is bound to something else, was sealed by another key, or has expired.
        """
        opened = self._decrypt(_bytes(cursor), _encoded(bound_to))
        (expiry,) = _EXPIRY.unpack_from(opened)
        if self._clock_s() >= expiry:
            raise CursorInvalid(EXPIRED)
        return opened[_EXPIRY.size :]

    def _decrypt(self, sealed: bytes, bound_to: list[bytes]) -> bytes:
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed, bound_to)
            except (InvalidTag, ValueError):  # ValueError: shorter than a tag
                continue
        raise CursorInvalid(NOT_OURS)


def _encoded(bound_to: Sequence[str]) -> list[bytes]:
    return [part.encode("utf-8", "surrogatepass") for part in bound_to]


def _text(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")


def _bytes(cursor: str) -> bytes:
    """Return the bytes of the one text that stands for them: Base64 would let others pass, such as one with blanks."""
    try:
        sealed = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except (UnicodeEncodeError, binascii.Error) as error:
        raise CursorInvalid(NOT_OURS) from error
    if _text(sealed) != cursor:
        raise CursorInvalid(NOT_OURS)
    return sealed
