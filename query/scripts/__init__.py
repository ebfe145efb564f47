"""Scripts of callers: Python that calls tools, in a sandbox of its own process."""
