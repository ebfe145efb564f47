"""Make the bundled model's file from the published weights, and choose how it is quantised."""
