"""Lead a run inside a scheduler's job: its agents, their authentication, and requeueing."""
