"""`toolscale doctor`: checks of this installation, each with advice.

- `installation`: settings, files and their permissions, the model and the vocabularies
- `stores`: intents, index, stored token counts (with `--audit`), and the query service
- `broker`: Redis and the workers, where Redis is used
"""
