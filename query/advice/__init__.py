"""Advice on the tools that a caller is shown, from their use in the last weeks."""
