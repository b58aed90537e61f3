"""Ways to start the workers of a node; a file's name is a value of `--workers`."""
