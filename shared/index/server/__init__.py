"""The index on a Qdrant server."""
