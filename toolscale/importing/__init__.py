"""`toolscale import`: the servers that clients are configured with, taken over into an `mcp.json` of ours.

places    where Claude Desktop, Claude Code, Cursor and VS Code keep their servers
finding   what stands there, in one form, and what cannot be taken over
merging   what that makes of the `mcp.json` that `toolscale serve` reads
masking   how entries are shown without their secrets
target    reading that file, and writing it with a backup
"""
