"""The result of a check of `toolscale doctor`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Level = Literal["ok", "warning", "problem"]


class Finding(BaseModel):
    """The state of one subject; `advice` names the repair and is empty for `ok`."""

    model_config = ConfigDict(frozen=True)

    about: str
    level: Level
    found: str
    advice: str = ""


def ok(about: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(about=about, level="ok", found=found)


def warning(about: str, found: str, advice: str) -> Finding:
    """Return an unusual state that may be intended, with advice."""
    return Finding(about=about, level="warning", found=found, advice=advice)


def problem(about: str, found: str, advice: str) -> Finding:
    """Return a failure, with advice."""
    return Finding(about=about, level="problem", found=found, advice=advice)
