"""Shared by tasks on one text or two: their tokens, batches and models."""
