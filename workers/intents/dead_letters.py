"""Dead letters: rejected events and messages, stored for people to read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

# Together 16 MiB. A letter is a little smaller than the 16 KiB that Redis allocates for it.
DEAD_LETTER_LIMIT = 1_000
LETTER_BYTES = 16_000
CUT_MARK = "…"
"""The end of a body that was cut; no event ends so, since an event is a JSON object."""
_REASON_CHARACTERS = 1_000


class DeadLetter(BaseModel):
    """A rejected message: its time (seconds since the epoch), the reason, and the beginning of its body.

    As JSON it has at most LETTER_BYTES. `key` identifies a stored letter in its store.
    """

    model_config = ConfigDict(frozen=True)

    at: float
    reason: str
    body: str
    key: str = Field(default="", exclude=True, repr=False)

    @classmethod
    def of(cls, at: float, reason: str, body: str) -> DeadLetter:
        """Return the letter of a rejected message, with a cut body if it is too large."""
        cut = body if len(body) <= LETTER_BYTES else body[:LETTER_BYTES] + CUT_MARK
        letter = cls(at=at, reason=_storable(reason[:_REASON_CHARACTERS]), body=_storable(cut))
        while (size_bytes := len(letter.model_dump_json().encode())) > LETTER_BYTES:
            kept = letter.body[: len(letter.body) * LETTER_BYTES // size_bytes - len(CUT_MARK) - 1]
            letter = letter.model_copy(update={"body": kept + CUT_MARK})
        return letter

    @property
    def is_cut(self) -> bool:
        """Return whether the end of the body is missing."""
        return self.body.endswith(CUT_MARK)


def _storable(text: str) -> str:
    """Return the text with a replacement for each lone surrogate, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
