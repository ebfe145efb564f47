"""The demo: real third-party MCP servers, ingested and searched."""
