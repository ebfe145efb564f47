"""Turn text into words, tokens, vectors and BM25 terms."""

BUNDLED_MODEL = "toolscale/all-MiniLM-L6-v2-static-int8"
"""The model that ships with Toolscale, defined here so that the settings do not load numpy."""
