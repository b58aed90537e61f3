"""A run as its launcher sees it: its record, its restarts, its logs, its failure."""
