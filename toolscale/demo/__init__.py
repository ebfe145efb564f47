"""The demo: ingests and searches real third-party MCP servers."""
