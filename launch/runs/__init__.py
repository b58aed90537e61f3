"""A run from its launcher's view: its record, its restarts, its logs, its failure."""
