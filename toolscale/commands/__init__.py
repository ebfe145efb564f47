"""The commands of `toolscale`, a module for each family; `toolscale/cli.py` puts them together."""
