"""What the write side and the read side agree on: values, events, tokens, embedding, index."""
