"""This build and an earlier one, measured in turns."""
