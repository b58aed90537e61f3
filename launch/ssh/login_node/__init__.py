"""Commands on a login node, from a laptop that only reaches its sshd."""
