"""Turn text into words, tokens, vectors and BM25 terms."""

BUNDLED_MODEL = "toolscale/tools-minilm-l6-v2"
"""The model that ships with Toolscale, defined here so that the settings do not load numpy."""
