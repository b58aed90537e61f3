"""Records become the numbers of a report: read, counted and compared."""
