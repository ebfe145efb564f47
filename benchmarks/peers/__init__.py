"""Toolscale and other systems that find tools, each in a separate environment: recall and latency."""
