"""How an MCP server is reached: where it may be, by which transport, and what is made of its errors.

The write side lists its tools through this, the read side calls them.
"""
