"""The version of stored documents. No I/O here.

A document of this version has the fields of its model, or fewer, or those of a newer release too: readers fill in
defaults and ignore unknown fields. So a new field with a default needs no new version. A release that changes or
removes a field raises the version one release after the readers accept both.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Version = Literal[1]


class StoredDocument(BaseModel):
    """A document that other releases read. Without a version it has the first; with an unknown one it is unreadable."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Version = 1
