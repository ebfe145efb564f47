"""`toolscale doctor`: what could keep Toolscale from working here, and what to do about it.

finding   what a check says
files     settings, the data directory, the mcp.json, and who may read and write secrets
stores    Redis, intents, index, and the query service
assets    the embedding model and the vocabularies
"""
