"""Lists the tools of one MCP server, within limits."""
