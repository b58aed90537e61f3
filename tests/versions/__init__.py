"""Versions of torch and Python that a user's program may have: `make versions`."""
