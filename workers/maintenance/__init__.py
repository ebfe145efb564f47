"""Rebuilds, migrates and restores the index and the intents."""
