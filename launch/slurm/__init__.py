"""Within a Slurm job, and what is asked of Slurm outside of one."""
