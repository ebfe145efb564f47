"""The use of the service by day, caller and tool: recorded in the background, kept in a store, and reported."""
