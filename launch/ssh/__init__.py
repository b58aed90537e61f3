"""Machines that one logs in to: which they are, how they are reached, what is sent there."""
