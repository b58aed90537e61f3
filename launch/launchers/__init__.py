"""Ways to start workers; each file's name is a value of --launcher."""
