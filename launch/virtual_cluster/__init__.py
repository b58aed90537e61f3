"""Make a cluster of one Linux machine: nodes with a network, names, Slurm and sshd."""
