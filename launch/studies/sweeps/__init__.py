"""A sweep runs any program with every combination of some values, here or on a cluster."""
