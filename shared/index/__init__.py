"""The only package that talks to Qdrant: one contract, two implementations."""
