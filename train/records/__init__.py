"""What happened, as records on disk: numbers are never read back out of printed text."""
