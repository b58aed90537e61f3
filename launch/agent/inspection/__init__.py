"""Find where the workers of a run are, in which collectives, and what they wait for."""
