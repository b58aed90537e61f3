"""Lead a run from its first attempt to its end, at a terminal or in a scheduler's job."""
