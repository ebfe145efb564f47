"""Toolsets in service: which tools of one are offered directly, and what it should hold."""
