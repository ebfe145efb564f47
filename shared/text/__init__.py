"""Turn text into words, tokens, vectors and BM25 terms."""

BUNDLED_MODEL = "toolscale/all-MiniLM-L6-v2-int8"
"""The model that ships with Toolscale; its name stands here because the settings must not load numpy."""
