"""Code that the workers, the query service and the command line share."""
