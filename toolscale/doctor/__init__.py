"""`toolscale doctor`: checks of this installation, each with advice.

- `finding`: the result of a check
- `files`: settings, the data directory, the mcp.json, and permissions of files with secrets
- `stores`: Redis, intents, index, and the query service
- `counts`: stored token counts, with `--audit`
- `assets`: the embedding model and the vocabularies
"""
