"""Machines that one logs in to: which they are, what they are like, and what is sent there."""
