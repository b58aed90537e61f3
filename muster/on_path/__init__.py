"""The last folder on the path of every worker, and of the processes that it spawns."""
