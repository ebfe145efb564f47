"""Computes tool features and writes a server's records."""
