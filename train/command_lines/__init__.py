"""Command lines of other programs, accepted unchanged."""
