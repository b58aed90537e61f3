"""Command lines of other programs, taken as they are given."""
