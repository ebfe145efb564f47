"""Latency of the query service: each tool separately, and many clients at once."""
