"""Gradients side by side in one tensor, so that one collective moves many of them."""
