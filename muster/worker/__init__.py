"""Loaded into every worker; needs the standard library alone, of Python 3.8 or newer."""
