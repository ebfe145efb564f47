"""MCP clients: `toolscale import` reads their servers, and `toolscale connect` adds Toolscale to them.

- `clients`: the table of the clients, their files on each system, and the form of an entry
- `entries`: an entry of each client in the one form of an `mcp.json`
- `find`: the servers in the files of clients, and the entries that cannot be imported
- `merge`: the servers found, in the `mcp.json` of `toolscale serve`
- `files`: reads that file, and writes files with a backup
- `editing`, with `jsonc`, `toml` and `yaml`: edits of a client's file that keep the rest of its text
- `connect`: the change of a client's file
"""
