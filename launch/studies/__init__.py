"""A study runs every cell of a grid, each once or several times, and records the results."""
