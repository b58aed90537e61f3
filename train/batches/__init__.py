"""Which samples of each global batch each rank computes."""
