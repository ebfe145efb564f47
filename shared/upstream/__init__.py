"""Connections to MCP servers: allowed addresses, credentials, transports and translated errors.

The write side lists tools through this package, and the read side calls them.
"""
