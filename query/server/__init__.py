"""The MCP server of the query service, its transports and its HTTP routes."""
