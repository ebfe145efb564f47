"""The page for people: what is in the catalogue, what it costs, what finding saved. It reads, and writes nothing."""
