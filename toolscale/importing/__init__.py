"""`toolscale import`: copy the servers of MCP clients into the `mcp.json` of `toolscale serve`.

- `client_files`: the clients and their configuration files
- `formats`: the format of each client
- `find`: their servers in one form, and the entries that cannot be imported
- `merge`: the effect on the `mcp.json`
- `target`: reads that file, and writes it with a backup
"""
