"""The id of a server: letters, digits and marks of any script, in NFC, and `.`, `_`, `/`, `@`, `-` within it."""

from __future__ import annotations

import hashlib
import re
import unicodedata

LONGEST = 200
"""Characters of an id."""

_IN_ASCII = re.compile(r"[A-Za-z0-9._/@-]")
# Fillers are letters, and variation selectors are marks.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def server_id(name: str) -> str:
    """Return the id of a server with this name: the name, with `-` for characters that no id has.

    A name whose other scripts are not all in the id, and a long one, get a part of the name's digest at the end: two of
    them have one id only if they differ in their normal form. Idempotent.
    """
    written = unicodedata.normalize("NFC", name)
    kept = "".join(sign if _is_allowed(sign) else "\0" for sign in written)
    found = re.sub(r"\0+", "-", kept).strip("-._/@")
    found = found if found[:1].isalnum() else "server"
    is_whole = name.isascii() or found == written
    if is_whole and len(found) <= LONGEST:
        return found
    digest = hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{found[: LONGEST - len(digest) - 1]}-{digest}"


def checked_server_id(text: str) -> str:
    """Return an id in NFC.

    Raises:
        ValueError: the text is no id.
    """
    found = unicodedata.normalize("NFC", text)
    if not (found[:1].isalnum() and len(found) <= LONGEST and all(map(_is_allowed, found))):
        raise ValueError(
            f"expected 1 to {LONGEST} letters and digits, and . _ / @ - after the first; other characters have no place"
        )
    return found


def _is_allowed(sign: str) -> bool:
    if sign.isascii():
        return _IN_ASCII.match(sign) is not None
    return unicodedata.category(sign)[0] in "LMN" and not _INVISIBLE.match(sign)
