"""What a program of one's own is made with: its ranks, its records, its checkpoints."""
