"""Agents: one on each node of a run, and what they and their launcher say to each other."""
