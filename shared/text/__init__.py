"""Text features: terms, BM25 weights, token counts and embeddings."""
