"""Machines reached by ssh: the hosts file, the connections, and what is sent to the machines."""
