"""A run inside a job that somebody holds already: `salloc`, `srun --pty bash`, a batch script."""
