"""How long a slice of a model change takes to begin."""
