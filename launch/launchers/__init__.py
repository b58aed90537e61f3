"""Ways to start workers; a file's name is a value of --launcher."""
