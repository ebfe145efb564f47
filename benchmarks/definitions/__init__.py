"""Sizes of the definitions of public servers, and how often similar descriptions are confused."""
