"""The MCP tools of the query service, one module each."""
