"""The workers of a run: who they are, how they meet, and how one learns of a lost one."""
