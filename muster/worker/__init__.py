"""Loaded into every worker; needs only the standard library of Python 3.8 or newer."""
