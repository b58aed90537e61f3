"""Lead a run inside a job of a scheduler: its agents, their proof, and requeueing."""
