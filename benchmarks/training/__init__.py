"""Train a model for finding tools from the published weights, on requests written for this product."""
