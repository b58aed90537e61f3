"""Run commands on a login node, from a laptop that can only reach its sshd."""
