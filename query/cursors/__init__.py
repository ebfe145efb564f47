"""Cursors: where an answer goes on, sealed, so that a client can neither read nor change what it hands back."""

from __future__ import annotations

from query.cursors.cursors import Cursors, open_cursors, own_cursors

__all__ = ["Cursors", "open_cursors", "own_cursors"]
