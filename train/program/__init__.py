"""What any program can use: its ranks, records and checkpoints."""
