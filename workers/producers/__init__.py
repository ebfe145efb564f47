"""The common parts of processes that emit events."""
