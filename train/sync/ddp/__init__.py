"""torch's DistributedDataParallel with our communication hooks."""
