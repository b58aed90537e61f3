"""Sweeps on Slurm have its commands as scripts, as its own tests do."""

from tests.launch.slurm.conftest import slurm as slurm
