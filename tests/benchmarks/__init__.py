"""Comparisons that are run side by side and print ratios: nothing here is a test."""
