"""The embedded index: Qdrant Edge, in this process."""
