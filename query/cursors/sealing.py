"""Sealing of a few bytes for a client to return: encrypted, authenticated, bound to a purpose, with an expiry.

AES-SIV (RFC 5297) needs no nonce, so replicas cannot repeat one. A cursor is twelve bytes shorter than with AES-GCM,
and a model pays for each byte in tokens. The same state sealed in the same second gives the same cursor.
"""

from __future__ import annotations

import base64
import binascii
import math
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
    """Seals with the first key and unseals with any, so that keys can rotate."""

    def __init__(self, keys: Sequence[bytes], ttl_s: float, clock_s: Callable[[], float] = time.time) -> None:
        """Use keys of KEY_BYTES each; a cursor expires after `ttl_s` seconds."""
        self._ciphers = [AESSIV(key) for key in keys]
        self._ttl_s = ttl_s
        self._clock_s = clock_s

    def seal(self, state: bytes, *bound_to: str, at_most_s: float = math.inf) -> str:
        """Return a cursor of letters, digits, `-` and `_`; unsealing requires the same `bound_to`.

        It expires with the others, or `at_most_s` seconds from now.
        """
        expiry = _EXPIRY.pack(int(self._clock_s() + min(self._ttl_s, at_most_s)))
        return _text(self._ciphers[0].encrypt(expiry + state, _encoded(bound_to)))

    def unseal(self, cursor: str, *bound_to: str) -> bytes:
        """Return the state of a cursor.

        Raises:
            CursorInvalid: the cursor was changed, is bound to something else, has another key, or expired.
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
    """Return the bytes of a cursor; only their canonical Base64 is valid, without blanks or the like."""
    try:
        sealed = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except (UnicodeEncodeError, binascii.Error) as error:
        raise CursorInvalid(NOT_OURS) from error
    if _text(sealed) != cursor:
        raise CursorInvalid(NOT_OURS)
    return sealed
