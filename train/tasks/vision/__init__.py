"""Shared by the image tasks: their samples and models."""
