"""What is loaded into every worker: of the standard library alone, of Python 3.8 or newer."""
