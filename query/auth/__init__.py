"""Authentication over HTTP: bearer tokens identify callers; a 401 names the issuer."""
