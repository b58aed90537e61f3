"""A study runs every cell of a grid, each once or a few times, and keeps what came of it."""
