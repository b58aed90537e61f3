"""What Slurm says of jobs: their state, and why they wait."""
