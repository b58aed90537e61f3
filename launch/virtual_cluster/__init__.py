"""One Linux machine becomes a cluster: nodes with a network, names, Slurm and sshd."""
