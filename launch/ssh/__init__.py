"""Machines that one logs in to: the hosts file, how ssh reaches them, and what is sent there."""
