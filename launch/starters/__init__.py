"""What starts the workers of a node; a file's name is the value of `--workers`."""
