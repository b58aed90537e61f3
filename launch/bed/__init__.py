"""One Linux machine becomes a cluster: nodes with their own network, names, Slurm and sshd."""
