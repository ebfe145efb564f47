"""What clients of the query service wait for: each of its tools asked alone, and many clients at once."""
