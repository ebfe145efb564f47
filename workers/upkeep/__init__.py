"""Audits, migrates and recovers the index and the intents."""
