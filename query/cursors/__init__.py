"""Cursors: the sealed position in an answer, which a client can neither read nor change."""

from __future__ import annotations

from query.cursors.cursors import Cursors, open_cursors, own_cursors

__all__ = ["Cursors", "open_cursors", "own_cursors"]
