"""Who computes what: which samples of each global batch are each rank's."""
