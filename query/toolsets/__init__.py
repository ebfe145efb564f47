"""Toolsets in service: which one is a caller's, what of it is offered directly, and what it may cost."""
