"""One worker's run: how it is built, its steps, what it shows, and how it ends."""
