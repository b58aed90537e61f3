"""Tests of sweeps on Slurm use its commands as scripts, like the tests in tests/launch/slurm."""

from tests.launch.slurm.conftest import slurm as slurm
