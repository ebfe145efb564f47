"""How the looks of a worker share threads and cores: which arrangement keeps listings quick while others embed."""
