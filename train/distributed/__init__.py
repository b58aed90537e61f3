"""The workers of a run: their ranks, how they meet, and how they learn of a lost one."""
