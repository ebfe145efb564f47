"""`toolscale import`: copy the servers of MCP clients into the `mcp.json` of `toolscale serve`.

- `client_files`: the configuration files of Claude Desktop, Claude Code, Cursor and VS Code
- `find`: their servers in one form, and the entries that cannot be imported
- `merge`: the effect on the `mcp.json`
- `masking`: entries without their secrets
- `target`: reads that file, and writes it with a backup
"""
