"""Requests over the servers of the demo, with their right tools."""
