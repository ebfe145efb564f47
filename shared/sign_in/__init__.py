"""Sign-ins to servers that need one: their tokens, encrypted at rest, and the OAuth flows of the SDK that get them."""
