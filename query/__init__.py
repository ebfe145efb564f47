"""The read side: an MCP service that finds tools and says what that saved."""
