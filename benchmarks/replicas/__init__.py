"""Search among replicas: the same tools found, in short answers, as fast as without them."""
