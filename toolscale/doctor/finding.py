"""What a check of `toolscale doctor` says."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Level = Literal["ok", "warning", "problem"]


class Finding(BaseModel):
    """What was found of one thing; `advice` is what to do about it, empty where all is well."""

    model_config = ConfigDict(frozen=True)

    about: str
    level: Level
    found: str
    advice: str = ""


def ok(about: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(about=about, level="ok", found=found)


def warning(about: str, found: str, advice: str) -> Finding:
    """Return that something is unusual, and what to do where it is not meant to be so."""
    return Finding(about=about, level="warning", found=found, advice=advice)


def problem(about: str, found: str, advice: str) -> Finding:
    """Return that something does not work."""
    return Finding(about=about, level="problem", found=found, advice=advice)
