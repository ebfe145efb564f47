"""Replicas: servers of a scope that offer the same tools, shown and called as one server."""
