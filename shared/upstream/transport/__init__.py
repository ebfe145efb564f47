"""MCP transports to upstream servers: streamable HTTP and stdio."""
