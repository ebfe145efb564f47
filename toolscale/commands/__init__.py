"""The commands of `toolscale`, one module per family; `toolscale/app.py` registers them."""
