"""Sweeps and studies run every cell of a grid, once or several times, and record the results."""
