"""Events of a run as records on disk: numbers are never read from printed text."""
