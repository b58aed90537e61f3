"""torch's DistributedDataParallel, with communication hooks of ours."""
