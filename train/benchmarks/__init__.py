"""Measure collectives and check their results, among all ranks and between every two nodes."""
