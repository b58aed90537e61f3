"""Batches become a better model; nothing here asks who started it."""
