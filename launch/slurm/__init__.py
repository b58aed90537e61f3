"""Work within a Slurm job, and Slurm's commands outside of one."""
