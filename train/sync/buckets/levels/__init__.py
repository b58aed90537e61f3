"""Nodes with several workers: who shares one, and what is done inside it before it is left."""
