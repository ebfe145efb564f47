"""How many calls the advised tools cover, and which tools of the demo's servers are rivals."""
