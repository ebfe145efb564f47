"""The commands of `toolscale`, a module for each family; `toolscale/app.py` puts them together."""
