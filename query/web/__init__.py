"""The read-only web page: the catalogue, its cost, and the savings."""
