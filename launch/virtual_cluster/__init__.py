"""Turn one Linux machine into a cluster: nodes with a network, names, Slurm and sshd."""
